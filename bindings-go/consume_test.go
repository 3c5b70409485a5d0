package retryrmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

var soon = retryrmq.Retry(retryrmq.Fixed(50 * time.Millisecond).Retries(3))

func TestAMessageThatFailsOnceIsHandled(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		s.publish(conn, "orders", "7")
		var handled atomic.Bool
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt == 1 {
				return errors.New("no answer")
			}
			if m.LastError != "no answer" || m.Retries != 1 || m.FirstFailedAt.IsZero() || m.History()[0].AppVersion != "" {
				t.Errorf("the second attempt sees %+v", m)
			}
			handled.Store(true)
			return nil
		}, retryrmq.DLX(), soon)
		eventually(t, "it is handled", handled.Load)
		if err := c.end(); err != nil {
			t.Error(err)
		}
		stats := conn.Stats("orders")
		if stats.Acked != 1 || stats.Retried != 1 || stats.Outstanding != 0 {
			t.Errorf("%+v", stats)
		}
		if text := conn.MetricsText(); !strings.Contains(text, `retryrmq_messages_acked_total{queue="orders"} 1`) {
			t.Error(text)
		}
	})
}

func TestTheHigherPriorityGetsTheMessagesWhileItHasRoom(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		var high, low atomic.Int64
		counted := func(n *atomic.Int64) retryrmq.Handler {
			return func(context.Context, *retryrmq.Message) error {
				n.Add(1)
				return nil
			}
		}
		consumers := []*consuming{s.consume(conn, "orders", counted(&high), retryrmq.DLX(), retryrmq.Priority(5))}
		for number := range int64(20) {
			if number == 3 { // it takes one at a time before it has seen some
				ready := make(chan struct{})
				consumers = append(consumers, s.consume(conn, "orders", counted(&low), retryrmq.DLX(), retryrmq.Priority(-5),
					retryrmq.OnReady(func() { close(ready) })))
				<-ready
			}
			s.publish(conn, "orders", "x")
			// A message that is not acknowledged yet takes its room.
			eventually(t, "somebody has done it", func() bool { return conn.Stats("orders").Acked > uint64(number) })
		}
		if high.Load() != 20 || low.Load() != 0 {
			t.Errorf("%d and %d", high.Load(), low.Load())
		}
		for _, c := range consumers {
			if err := c.end(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAPanicIsParkedWithItsStack(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { panic(fmt.Errorf("boom")) },
			retryrmq.DLX(), soon)
		eventually(t, "it is parked", func() bool { return conn.Stats("orders").Parked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			if parked.Reason != "exhausted" || parked.Error != "panic: boom" || parked.ErrorType != "panic" ||
				!strings.Contains(parked.Stack, "consume_test.go") || parked.Attempts != 4 || parked.ByBroker {
				t.Errorf("%+v", parked)
			}
		}
	})
}

func TestWhatIsParkedAtOnceHasItsStack(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "permanent", "fatal", "panic")
		unknown := &net.AddrError{Err: "no such host", Addr: "nowhere"}
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			switch string(m.Body) {
			case "permanent":
				return retryrmq.Permanent(fmt.Errorf("order 7: %w", unknown))
			case "panic":
				panic(unknown)
			}
			return fmt.Errorf("order 8: %w", unknown)
		}, retryrmq.DLX(), soon, retryrmq.Fatal(func(err error) bool { return errors.Is(err, unknown) }))
		eventually(t, "all are parked", func() bool { return conn.Stats("orders").Parked == 3 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			want := "wraps *net.AddrError: address nowhere: no such host"
			if string(parked.Message.Body) == "panic" {
				want = "consume_test.go"
			}
			if parked.Attempts != 1 || !strings.Contains(parked.Stack, want) {
				t.Errorf("%s: %d attempts, %q", parked.Message.Body, parked.Attempts, parked.Stack)
			}
		}
	})
}

func TestAHandlerThatEndsItsGoroutineHasFailed(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", numbered(20)...)
		var seen ledger
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if seen.saw(m) == 1 {
				runtime.Goexit()
			}
			if !strings.Contains(m.LastError, "runtime.Goexit") {
				t.Errorf("the error is %q", m.LastError)
			}
			return nil
		}, retryrmq.DLX(), soon, retryrmq.Concurrency(2))
		eventually(t, "all are handled", func() bool { return conn.Stats("orders").Acked == 20 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestOneSlowHandlerHoldsNobodyUp(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", append([]string{"slow"}, numbered(300)...)...)
		release, seen := make(chan struct{}), ledger{}
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			seen.saw(m)
			if string(m.Body) == "slow" {
				<-release
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Concurrency(2))
		eventually(t, "the others are acknowledged while it runs", func() bool { return conn.Stats("orders").Acked == 300 })
		close(release)
		eventually(t, "it is acknowledged", func() bool { return conn.Stats("orders").Acked == 301 })
		if err := c.end(); err != nil || seen.total() != 301 {
			t.Errorf("%v, %d calls", err, seen.total())
		}
	})
}

func TestAnAcknowledgementDoesNotWaitForTheNextHandler(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		release := make(chan struct{})
		names := append(numbered(200), "slow")
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if string(m.Body) == "slow" {
				<-release
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Concurrency(1))
		for _, name := range names {
			if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", Body: []byte(name)}); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all but the slow one are acknowledged", func() bool { return conn.Stats("orders").Acked == 200 })
		close(release)
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestHandlersRunAtATime(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", numbered(40)...)
		var running, most atomic.Int64
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error {
			now := running.Add(1)
			defer running.Add(-1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			for deadline := time.Now().Add(10 * time.Second); most.Load() < 5 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Concurrency(5))
		eventually(t, "all are handled", func() bool { return conn.Stats("orders").Acked == 40 })
		if err := c.end(); err != nil || most.Load() != 5 {
			t.Errorf("%v; %d ran at a time", err, most.Load())
		}
	})
}

func TestTheEndDrains(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", numbered(100)...)
		started, release := make(chan struct{}, 100), make(chan struct{})
		c := s.consume(conn, "orders", func(ctx context.Context, m *retryrmq.Message) error {
			started <- struct{}{}
			<-release
			if ctx.Err() != nil {
				t.Error("the context of a running handler has ended")
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Concurrency(3))
		for range 3 {
			<-started
		}
		c.stop()
		// What has not begun is back, unseen, while the handlers still run.
		var seen ledger
		other := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			seen.saw(m)
			return nil
		}, retryrmq.DLX())
		eventually(t, "the rest is handled", func() bool { return seen.total() == 97 })
		close(release)
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if err := other.end(); err != nil {
			t.Error(err)
		}
		// What has begun is acknowledged.
		if stats := conn.Stats("orders"); stats.Acked != 100 || stats.Outstanding != 0 || seen.total() != 97 {
			t.Errorf("%+v; %d were left", stats, seen.total())
		}
	})
}

func TestAHandlerThatDoesNotEndIsLeftBehind(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		started, release, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
		c := s.consume(conn, "orders", func(ctx context.Context, m *retryrmq.Message) error {
			close(started)
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, retryrmq.ErrTimeout) {
				t.Errorf("the cause is %v", cause)
			}
			<-release
			defer close(gone)
			return errors.New("too late")
		}, retryrmq.DLX(), retryrmq.DrainTimeout(50*time.Millisecond))
		<-started
		if err := c.end(); !errors.Is(err, retryrmq.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		close(release) // it settles after everything is closed, which does nothing
		<-gone
		again := s.dial()
		handled := make(chan string, 1)
		c = s.consume(again, "orders", func(_ context.Context, m *retryrmq.Message) error {
			handled <- string(m.Body)
			return nil
		}, retryrmq.DLX())
		if body := <-handled; body != "7" {
			t.Errorf("got %q", body)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestManyConsumersOnOneConnection(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		var all, ready sync.WaitGroup
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var handled atomic.Int64
		s.queue("shared", "classic")
		for i := range 8 {
			queue := "shared"
			if i%2 == 0 {
				queue = fmt.Sprintf("own-%d", i)
				s.queue(queue, "classic")
			}
			s.publish(conn, queue, numbered(25)...)
			all.Add(1)
			ready.Add(1)
			go func() {
				defer all.Done()
				err := conn.Consume(ctx, queue, func(context.Context, *retryrmq.Message) error {
					handled.Add(1)
					return nil
				}, retryrmq.DLX(), retryrmq.OnReady(ready.Done))
				if err != nil {
					t.Error(err)
				}
			}()
		}
		eventually(t, "all are handled", func() bool { return handled.Load() == 200 })
		ready.Wait() // others may have handled everything before the last of them was there
		stop()
		all.Wait()
	})
}

func TestALostConnectionIsMadeAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		const count = 400
		var seen ledger
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if seen.saw(m) == 1 && len(m.Body)%2 == 0 {
				return errors.New("no")
			}
			return nil
		}, retryrmq.DLX(), soon)
		published := make(chan struct{})
		go func() {
			defer close(published)
			for _, name := range numbered(count) {
				for conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: "orders", Body: []byte(name), MessageID: name}) != nil {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}()
		// A subscription that is cut off while it is made fails, and Consume returns.
		eventually(t, "it consumes", func() bool { return seen.bodies() > 0 })
		for range 2 {
			before := conn.Reconnects()
			eventually(t, "a connection is closed and made again", func() bool {
				s.disconnect() // what the broker lists may be gone already
				return conn.Reconnects() > before
			})
		}
		<-published
		eventually(t, "every message was seen", func() bool { return seen.bodies() == count })
		eventually(t, "nothing is outstanding", func() bool { return conn.Stats("orders").Outstanding == 0 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestASubscriptionThatIsRefused(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		if err := conn.Consume(t.Context(), "nowhere", nothing); !errors.Is(err, retryrmq.ErrQueueNotFound) {
			t.Errorf("got %v", err)
		}
		s.queue("orders", "quorum")
		err := conn.Consume(t.Context(), "orders", nothing, retryrmq.DLX(), retryrmq.Strategy(retryrmq.DeadLetter))
		if !errors.Is(err, retryrmq.ErrInvalidPolicy) && !errors.Is(err, retryrmq.ErrStrategyRefused) && !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAContextThatHasEndedSaysHowAndWhy(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		over := errors.New("over")
		cancelled, cancel := context.WithCancelCause(t.Context())
		cancel(over)
		late, end := context.WithTimeoutCause(t.Context(), 0, over)
		defer end()
		for want, ctx := range map[error]context.Context{context.Canceled: cancelled, context.DeadlineExceeded: late} {
			_, dialled := retryrmq.Dial(ctx, s.url)
			for name, err := range map[string]error{
				"Dial":    dialled,
				"Consume": conn.Consume(ctx, "orders", func(context.Context, *retryrmq.Message) error { return nil }),
				"Publish": conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders"}),
				"Parked":  firstError(conn, ctx),
			} {
				if !errors.Is(err, want) || !errors.Is(err, over) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		plain, stop := context.WithCancel(t.Context())
		stop()
		if err := conn.Publish(plain, retryrmq.Publishing{RoutingKey: "orders"}); err != context.Canceled {
			t.Errorf("got %v", err)
		}
	})
}

// Whoever is not waited for any more is let go, at whatever moment of its beginning that is.
func TestAConsumerThatIsCancelledAsItBeginsLeavesNothing(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		names := numbered(100)
		s.publish(conn, "orders", names...)
		var all sync.WaitGroup
		for range 4 {
			all.Add(1)
			go func() {
				defer all.Done()
				for range 50 {
					ctx, cancel := context.WithTimeout(context.Background(), rand.N(25*time.Millisecond))
					err := conn.Consume(ctx, "orders", func(context.Context, *retryrmq.Message) error {
						return retryrmq.Defer(0)
					}, retryrmq.DLX())
					cancel()
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				}
			}()
		}
		all.Wait()
		eventually(t, "the queue has no consumer, and all its messages", func() bool {
			queue := struct {
				Consumers      int
				Ready          int `json:"messages_ready"`
				Unacknowledged int `json:"messages_unacknowledged"`
			}{-1, -1, -1} // what the broker has not counted yet it leaves out
			if err := json.Unmarshal(s.manage("GET", "/api/queues/"+s.vhost+"/orders", nil), &queue); err != nil {
				t.Fatal(err)
			}
			return queue.Consumers == 0 && queue.Unacknowledged == 0 && queue.Ready == len(names)
		})
		// What the broker says there may be a moment old: whoever is left would take some of these.
		s.publish(conn, "orders", "more", "and more")
		var seen ledger
		c := s.consume(s.dial(), "orders", func(_ context.Context, m *retryrmq.Message) error {
			seen.saw(m)
			return nil
		}, retryrmq.DLX())
		eventually(t, "another consumer gets all", func() bool { return seen.bodies() == len(names)+2 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func firstError(conn *retryrmq.Conn, ctx context.Context) error {
	for _, err := range conn.Parked(ctx, "orders") {
		return err
	}
	return nil
}

func TestTheNumbersOfAQueueGoOnWhileOneConsumerLives(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		handle := func(context.Context, *retryrmq.Message) error { return nil }
		first := s.consume(conn, "orders", handle)
		ready := make(chan struct{})
		second := s.consume(conn, "orders", handle, retryrmq.OnReady(func() { close(ready) }))
		<-ready
		for i, end := range []*consuming{second, first} {
			s.publish(conn, "orders", "7")
			eventually(t, "it is counted", func() bool { return conn.Stats("orders").Acked == uint64(i+1) })
			if err := end.end(); err != nil {
				t.Error(err)
			}
		}
		if stats := conn.Stats("orders"); stats.Acked != 2 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestANilPointerAsAnErrorEndsNoConsumer(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "a", "b")
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			var op *net.OpError
			return op
		}, retryrmq.DLX(), soon, retryrmq.HandlerTimeout(time.Minute))
		eventually(t, "both are parked", func() bool { return conn.Stats("orders").Parked == 2 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestAFunctionOfFatalThatEndsItsGoroutine(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return errors.New("no") },
			retryrmq.DLX(), soon, retryrmq.Concurrency(1), retryrmq.Fatal(func(error) bool {
				runtime.Goexit()
				return true
			}))
		eventually(t, "it is parked", func() bool { return conn.Stats("orders").Parked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestNothingIsNil(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		var none *retryrmq.Conn
		//lint:ignore SA1012 that is the point
		var noContext context.Context
		for name, err := range map[string]error{
			"handler":    conn.Consume(t.Context(), "orders", nil),
			"context":    conn.Consume(noContext, "orders", nothing),
			"publish":    conn.Publish(noContext, retryrmq.Publishing{}),
			"connection": none.Consume(t.Context(), "orders", nothing),
			"zero":       new(retryrmq.Conn).Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders"}),
			"close":      none.Close(),
			"close zero": new(retryrmq.Conn).Close(),
			"no loop":    firstError(new(retryrmq.Conn), t.Context()),
			"parked":     (&retryrmq.ParkedMessage{}).Replay(t.Context()),
		} {
			if !errors.Is(err, retryrmq.ErrInvalidOption) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, err := range conn.Parked(noContext, "orders") {
			if !errors.Is(err, retryrmq.ErrInvalidOption) {
				t.Errorf("got %v", err)
			}
		}
		for _, conn := range []*retryrmq.Conn{none, {}} {
			product, _ := conn.Server()
			if conn.Stats("orders").Acked != 0 || conn.MetricsText() != "" || conn.Reconnects() != 0 || product != "" || conn.String() == "" {
				t.Error("a connection that is none tells something")
			}
		}
		if _, err := retryrmq.Dial(noContext, s.url); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("got %v", err)
		}
		if _, err := retryrmq.Dial(t.Context(), s.url, nil); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("got %v", err)
		}
	})
}
