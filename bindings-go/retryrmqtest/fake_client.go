package retryrmqtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// FakeClient is a connection without a broker: it keeps what is published, and delivers messages to handlers.
//
// Conn fits wherever a [retryrmq.Conn] is expected, and refuses the same arguments with the same errors. What is published is confirmed at once,
// whether or not such a queue exists, and reaches no handler:
//
//	fake := retryrmqtest.NewFakeClient(t)
//	service(fake.Conn).ServeHTTP(recorder, request)
//	// fake.Published()[0].RoutingKey == "orders"
//
// Only [FakeClient.Deliver] calls the handlers of its consumers. There are no events, and no parked messages to browse.
type FakeClient struct {
	*retryrmq.Conn
	broker *fakeBroker
}

// NewFakeClient makes one that is closed when the test ends. Middleware and a logger may be given; other options concern the connection, and have
// no effect.
func NewFakeClient(t testing.TB, options ...retryrmq.DialOption) *FakeClient {
	t.Helper()
	broker := &fakeBroker{changed: make(chan struct{})}
	conn, err := retryrmq.NewFakeConn(broker, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &FakeClient{conn, broker}
}

// Published returns the published messages, in their order.
func (f *FakeClient) Published() []retryrmq.Publishing {
	f.broker.mu.Lock()
	defer f.broker.mu.Unlock()
	return slices.Clone(f.broker.published)
}

// SetPublishError makes every publish fail with err, such as retryrmq.ErrUnreachable; with nil the broker confirms all. Meanwhile the connection is
// not healthy.
func (f *FakeClient) SetPublishError(err error) {
	f.broker.mu.Lock()
	defer f.broker.mu.Unlock()
	f.broker.publishError = err
}

// Deliver runs the handler of queue on a message until the message has ended, with the real policy, and without waiting.
//
// It is [Simulate] for one message: only the broker is simulated, and the clock jumps to the next attempt. The handler runs on the caller's
// goroutine. If no consumer of the queue runs yet, Deliver waits for one until ctx ends, or for 10 seconds if ctx has no deadline. It returns
// [retryrmq.ErrClosed] once the connection is closed. A consumer that ends waits for its deliveries up to its drain timeout; then Deliver
// returns [retryrmq.ErrTimeout], as soon as the handler returns.
func (f *FakeClient) Deliver(ctx context.Context, queue string, message retryrmq.Publishing) (*Result, error) {
	simulation, err := f.broker.simulation(ctx, queue)
	if err != nil {
		return nil, err
	}
	return run(ctx, queue, simulation, []retryrmq.Publishing{message})
}

// How long Deliver waits for a consumer if its context has no deadline. That of a test ends only with the test.
var consumerTimeout = 10 * time.Second

type fakeBroker struct {
	mu           sync.Mutex
	published    []retryrmq.Publishing
	publishError error
	consumers    []*fakeConsumer
	closing      bool
	// Closed when a consumer starts or the connection closes, and made anew.
	changed chan struct{}
}

type fakeConsumer struct {
	queue         string
	newSimulation func() (*retryrmq.Simulation, error)
}

func (b *fakeBroker) Publish(message retryrmq.Publishing) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.publishError == nil {
		b.published = append(b.published, message)
	}
	return b.publishError
}

func (b *fakeBroker) Consuming(queue string, newSimulation func() (*retryrmq.Simulation, error)) func() {
	consumer := &fakeConsumer{queue, newSimulation}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.consumers = append(b.consumers, consumer)
	b.tellChange()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.consumers = slices.DeleteFunc(b.consumers, func(other *fakeConsumer) bool { return other == consumer })
	}
}

func (b *fakeBroker) Closing() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closing = true
	b.tellChange()
}

// The caller holds the lock.
func (b *fakeBroker) tellChange() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeBroker) Trouble() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.publishError == nil {
		return ""
	}
	return b.publishError.Error()
}

// A simulation of a consumer of the queue. Waits for one.
func (b *fakeBroker) simulation(ctx context.Context, queue string) (*retryrmq.Simulation, error) {
	simulation, changed, err := b.find(queue)
	if simulation != nil || err != nil {
		return simulation, err
	}
	if _, isLimited := ctx.Deadline(); !isLimited {
		limited, cancel := context.WithTimeout(ctx, consumerTimeout)
		defer cancel()
		ctx = limited
	}
	for simulation == nil && err == nil {
		select {
		case <-changed:
			simulation, changed, err = b.find(queue)
		case <-ctx.Done():
			return nil, fmt.Errorf("the fake client has no consumer of %q; it has [%s]: %w", queue, strings.Join(b.known(), ", "), ctx.Err())
		}
	}
	return simulation, err
}

// A simulation of a consumer of the queue, or nil, and what is closed at the next change.
func (b *fakeBroker) find(queue string) (*retryrmq.Simulation, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		return nil, b.changed, retryrmq.ErrClosed
	}
	for _, consumer := range b.consumers {
		if consumer.queue == queue {
			simulation, err := consumer.newSimulation() // under the lock: the consumer cannot end before
			return simulation, b.changed, err
		}
	}
	return nil, b.changed, nil
}

func (b *fakeBroker) known() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := make([]string, 0, len(b.consumers))
	for _, consumer := range b.consumers {
		known = append(known, fmt.Sprintf("%q", consumer.queue))
	}
	return known
}
