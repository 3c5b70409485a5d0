package retryrmq

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// FakeBroker takes the place of a broker in a test, see [NewFakeConn]. Many goroutines may call it at the same time.
type FakeBroker interface {
	// Publish gets every message that a broker would not refuse, after all middleware. Its error is that of [Conn.Publish].
	Publish(message Publishing) error
	// Consuming is told of a consumer that has started. Each call of newSimulation makes an empty queue with its handler and its options. The
	// returned function is called when the consumer takes nothing more; newSimulation returns [ErrClosed] from then on. The consumer ends when
	// its simulations are closed, at the latest after the drain timeout.
	Consuming(queue string, newSimulation func() (*Simulation, error)) (ended func())
	// Closing is called once, at the beginning of [Conn.Close].
	Closing()
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
func (c *Conn) consumeFromFake(ctx context.Context, queue string, handler Handler, batches BatchHandler, plan *plan,
	drain time.Duration) error {
	if batches != nil {
		handler = batches.ofOne
	}
	callbacks := &readyCallbacks{ready: plan.ready, done: make(chan struct{})}
	err := c.runFake(ctx, queue, handler, plan, drain, callbacks)
	// After leave: a function of OnReady may call Close, which waits for leave.
	if !callbacks.wait(userCodeTimeout) && err == nil {
		err = userCodeLeft("OnReady", queue)
	}
	return err
}

func (c *Conn) runFake(ctx context.Context, queue string, handler Handler, plan *plan, drain time.Duration, callbacks *readyCallbacks) error {
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
	deliveries := newFakeDeliveries()
	ended := c.broker.Consuming(queue, func() (*Simulation, error) {
		if !deliveries.begin() {
			return nil, ErrClosed
		}
		simulation, err := plan.simulation(queue, deliveries.abandoning(handler))
		if err != nil {
			deliveries.end()
			return nil, err
		}
		simulation.counted = func(step Step) { c.count(queue, step) }
		simulation.drained, simulation.closed = deliveries.drained, sync.OnceFunc(deliveries.end)
		return simulation, nil
	})
	callbacks.begin(func() {}, c.log, queue)
	var err error
	select {
	case <-ctx.Done():
	case <-c.closing:
		err = ErrClosed
	}
	ended()
	if left := deliveries.drain(drain); left > 0 {
		err = handlersLeft(queue, left, left)
	}
	return err
}

// The simulations of a consumer that are not closed. Each delivers one message at a time.
type fakeDeliveries struct {
	mu      sync.Mutex
	running int
	ending  bool
	// Closed when none runs any more, and none begins.
	gone chan struct{}
	// Ends when nobody waits for them any more.
	drained context.Context
	abandon context.CancelCauseFunc
}

func newFakeDeliveries() *fakeDeliveries {
	d := &fakeDeliveries{gone: make(chan struct{})}
	d.drained, d.abandon = context.WithCancelCause(context.Background())
	return d
}

// False if the consumer takes nothing more.
func (d *fakeDeliveries) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ending {
		d.running++
	}
	return !d.ending
}

func (d *fakeDeliveries) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running--; d.ending && d.running == 0 {
		close(d.gone)
	}
}

// Waits for those that run, up to the drain timeout. Returns how many still run.
func (d *fakeDeliveries) drain(limit time.Duration) int {
	d.mu.Lock()
	if d.ending = true; d.running == 0 {
		close(d.gone)
	}
	d.mu.Unlock()
	waitAtMost(limit, d.gone)
	d.mu.Lock()
	left := d.running
	d.mu.Unlock()
	d.abandon(errDrained)
	return left
}

// The handler, with a context that also ends when the drain timeout is over.
func (d *fakeDeliveries) abandoning(handler Handler) Handler {
	return func(ctx context.Context, m *Message) error {
		ctx, cancel := context.WithCancelCause(ctx)
		context.AfterFunc(d.drained, func() { cancel(errDrained) })
		return handler(ctx, m)
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
