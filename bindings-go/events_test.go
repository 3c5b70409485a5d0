package retryrmq_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func TestEventsAreTold(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.queue("seen", "classic")
		s.publish(conn, "orders", "7")
		events, small := make(chan retryrmq.Event, 100), make(chan retryrmq.Event)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error { return errors.New("no") },
			retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond).Retries(1)), retryrmq.Events(events), retryrmq.Events(small),
			retryrmq.OnEvent(func(event retryrmq.Event) {
				// A listener may wait for the broker, and may panic.
				if err := conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: "seen", Body: []byte(event.Name)}); err != nil {
					t.Error(err)
				}
				panic("no matter")
			}))
		eventually(t, "it is parked", func() bool { return conn.Stats("orders").Parked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		first, second := <-events, <-events
		want := retryrmq.Event{Name: retryrmq.EventRetried, Queue: "orders", MessageID: "7", Attempt: 1, Delay: 10 * time.Millisecond, Error: "no", ErrorType: "Error"}
		if first != want {
			t.Errorf("got %+v", first)
		}
		want = retryrmq.Event{Name: retryrmq.EventParked, Queue: "orders", MessageID: "7", Attempt: 2, Reason: "exhausted", Error: "no", ErrorType: "Error"}
		if second != want {
			t.Errorf("got %+v", second)
		}
		var seen ledger
		c = s.consume(conn, "seen", func(_ context.Context, m *retryrmq.Message) error {
			seen.saw(m)
			return nil
		}, retryrmq.DLX())
		eventually(t, "both were published by the listener", func() bool { return seen.bodies() == 2 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestOnReadyIsNotInTheWay(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		s.queue("orders", "classic")
		never := func(context.Context, *retryrmq.Message) error {
			t.Error("a message came")
			return nil
		}
		conn := s.dial()
		s.publish(conn, "orders", "7")
		c := s.consume(conn, "orders", never, retryrmq.OnReady(func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}))
		select {
		case err := <-c.err:
			if !errors.Is(err, retryrmq.ErrClosed) {
				t.Error(err)
			}
			c.err <- err
		case <-time.After(120 * time.Second):
			t.Fatal("Close in OnReady hangs")
		}
		// A panic, and the end of its goroutine, are its own.
		conn = s.dial()
		var told, handled atomic.Int64
		c = s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error {
			if told.Load() != 2 {
				t.Error("a message came before the subscription was told to stand")
			}
			handled.Add(1)
			return nil
		}, retryrmq.OnReady(func() { told.Add(1); panic("no matter") }), retryrmq.OnReady(func() { told.Add(1); runtime.Goexit() }))
		eventually(t, "the message is handled", func() bool { return handled.Load() == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestOnReadyThatTakesItsTimeHoldsUpNoEnd(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		s.queue("orders", "classic")
		conn := s.dial()
		begun, release := make(chan struct{}), make(chan struct{})
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return nil },
			retryrmq.OnReady(func() { close(begun); <-release }))
		<-begun
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		close(release)
		if err := c.end(); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAListenerThatEndsItsGoroutineMissesNothing(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", numbered(5)...)
		var first, second atomic.Int64
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return retryrmq.Park("no") }, retryrmq.DLX(),
			retryrmq.OnEvent(func(retryrmq.Event) { first.Add(1); runtime.Goexit() }),
			retryrmq.OnEvent(func(retryrmq.Event) { second.Add(1) }))
		eventually(t, "all are parked", func() bool { return conn.Stats("orders").Parked == 5 })
		if err := c.end(); err != nil || first.Load() != 5 || second.Load() != 5 {
			t.Errorf("%v; %d and %d events were told", err, first.Load(), second.Load())
		}
	})
}
