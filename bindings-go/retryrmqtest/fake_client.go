package retryrmqtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

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
// goroutine. If no consumer of the queue runs yet, Deliver waits for one until ctx ends.
func (f *FakeClient) Deliver(ctx context.Context, queue string, message retryrmq.Publishing) (*Result, error) {
	newSimulation, err := f.broker.consumer(ctx, queue)
	if err != nil {
		return nil, err
	}
	simulation, err := newSimulation()
	if err != nil {
		return nil, err
	}
	return run(ctx, queue, simulation, []retryrmq.Publishing{message})
}

type fakeBroker struct {
	mu           sync.Mutex
	published    []retryrmq.Publishing
	publishError error
	consumers    []*fakeConsumer
	// Closed when a consumer starts, and made anew.
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
	close(b.changed)
	b.changed = make(chan struct{})
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.consumers = slices.DeleteFunc(b.consumers, func(other *fakeConsumer) bool { return other == consumer })
	}
}

func (b *fakeBroker) Trouble() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.publishError == nil {
		return ""
	}
	return b.publishError.Error()
}

// How its simulation is made.
func (b *fakeBroker) consumer(ctx context.Context, queue string) (func() (*retryrmq.Simulation, error), error) {
	for {
		b.mu.Lock()
		known := make([]string, 0, len(b.consumers))
		for _, consumer := range b.consumers {
			if consumer.queue == queue {
				b.mu.Unlock()
				return consumer.newSimulation, nil
			}
			known = append(known, fmt.Sprintf("%q", consumer.queue))
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the fake client has no consumer of %q; it has [%s]: %w", queue, strings.Join(known, ", "), ctx.Err())
		}
	}
}
