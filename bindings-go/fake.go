package retryrmq

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// FakeBroker takes the place of a broker in a test, see [NewFakeConn]. Many goroutines may call it at the same time.
type FakeBroker interface {
	// Publish gets every message that a broker would not refuse, after all middleware. Its error is that of [Conn.Publish].
	Publish(message Publishing) error
	// Consuming is told of a consumer that has started. Each call of newSimulation makes an empty queue with its handler and its options. The
	// returned function is called when the consumer ends.
	Consuming(queue string, newSimulation func() (*Simulation, error)) (ended func())
	// Trouble is what [Conn.Trouble] returns.
	Trouble() string
}

// NewFakeConn makes a Conn without a broker, for tests. Package retryrmqtest has a simpler interface to it, FakeClient.
//
// It refuses the same arguments with the same errors. Consumers run until their contexts end, and get only what broker makes of their
// simulations. There are no parked messages to browse, and no events. Options of [Dial] that concern the connection have no effect.
func NewFakeConn(broker FakeBroker, options ...DialOption) (*Conn, error) {
	if broker == nil {
		return nil, invalidOption("the broker is nil")
	}
	d := dialOptions{}
	for _, option := range options {
		if option == nil {
			return nil, invalidOption("an option is nil")
		}
		option(&d)
	}
	c, err := newConn(&d)
	if err != nil {
		return nil, err
	}
	c.broker = broker
	return c, nil
}

// Publishes a message that the core has not refused.
func (c *Conn) publishToFake(message *Publishing, outgoing *native.Outgoing) error {
	options, err := native.NewOptions(native.OptionValues{"queue": "published"})
	if err != nil {
		return asError(err)
	}
	defer options.Free()
	simulation, err := native.NewSimulation(options)
	if err != nil {
		return asError(err)
	}
	defer simulation.Free()
	if err := simulation.Publish(outgoing); err != nil {
		return asError(err)
	}
	published := *message
	published.Body, published.Headers = bytes.Clone(message.Body), maps.Clone(message.Headers)
	return c.broker.Publish(published)
}

// Consumes until ctx or the connection ends.
func (c *Conn) consumeFromFake(ctx context.Context, queue string, handler Handler, batches BatchHandler, plan *plan) error {
	if batches != nil {
		handler = batches.ofOne
	}
	callbacks := &readyCallbacks{ready: plan.ready, done: make(chan struct{})}
	err := c.runFake(ctx, queue, handler, plan, callbacks)
	// After leave: a function of OnReady may call Close, which waits for leave.
	if !callbacks.wait(userCodeTimeout) && err == nil {
		err = userCodeLeft("OnReady", queue)
	}
	return err
}

func (c *Conn) runFake(ctx context.Context, queue string, handler Handler, plan *plan, callbacks *readyCallbacks) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	c.mu.Lock()
	c.consuming[queue] = append(c.consuming[queue], nil) // handlers may publish while the connection closes
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.consuming[queue] = c.consuming[queue][1:]; len(c.consuming[queue]) == 0 {
			delete(c.consuming, queue)
		}
	}()
	ended := c.broker.Consuming(queue, func() (*Simulation, error) {
		simulation, err := plan.simulation(queue, handler)
		if err == nil {
			simulation.counted = func(step Step) { c.count(queue, step) }
		}
		return simulation, err
	})
	defer ended()
	callbacks.begin(func() {}, c.log, queue)
	select {
	case <-ctx.Done():
		return nil
	case <-c.closing:
		return ErrClosed
	}
}

// Calls the handler with a batch of this message alone.
func (b BatchHandler) ofOne(ctx context.Context, m *Message) error {
	given := []*Message{m}
	messages := slices.Clone(given)
	each, err := batchResults(b(ctx, messages), 1, func() bool { return !slices.Equal(given, messages) })
	if each != nil {
		return each[0]
	}
	return err
}

func (c *Conn) count(queue string, step Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stats := c.stats[queue]
	stats.Delivered++
	switch step.Became {
	case BecameAcked:
		stats.Acked++
	case BecameRetried:
		stats.Retried++
	case BecameDeferred:
		stats.Deferred++
	case BecameParked:
		stats.Parked++
	case BecameRejected:
		stats.Rejected++
	}
	if step.Became != BecameAcked && step.Became != BecameDeferred {
		stats.Failed++
	}
	c.stats[queue] = stats
}
