package retryrmq_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

type keyOfTest struct{}

// A limit that a handler which returns at once keeps on a busy machine as well, mostly: there are more retries than it needs.
const limit = time.Second

var patient = retryrmq.Retry(retryrmq.Fixed(50 * time.Millisecond).Retries(20))

func TestAHandlersContextHasADeadlineAndTheValuesOfConsume(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		for _, limit := range []time.Duration{0, time.Hour} {
			options := []retryrmq.Option{retryrmq.DLX()}
			if limit > 0 {
				options = append(options, retryrmq.HandlerTimeout(limit))
			}
			s.publish(conn, "orders", "7")
			ctx, stop := context.WithCancel(context.WithValue(t.Context(), keyOfTest{}, "mine"))
			began := time.Now()
			err := conn.Consume(ctx, "orders", func(ctx context.Context, _ *retryrmq.Message) error {
				defer stop()
				until, limited := ctx.Deadline()
				if limited != (limit > 0) || limited && (until.Before(began.Add(limit)) || until.After(time.Now().Add(limit))) {
					t.Errorf("the deadline of %v is %v", limit, until)
				}
				if ctx.Value(keyOfTest{}) != "mine" {
					t.Error("a value is lost")
				}
				return nil
			}, options...)
			if err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAHandlerThatTakesTooLong(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "deaf", "listening")
		var seen ledger
		release := make(chan struct{})
		c := s.consume(conn, "orders", func(ctx context.Context, m *retryrmq.Message) error {
			if seen.saw(m) > 1 {
				if m.LastError != "the handler took longer than 1s" {
					t.Errorf("the error is %q", m.LastError)
				}
				return nil
			}
			if string(m.Body) == "listening" {
				<-ctx.Done()
				return ctx.Err()
			}
			<-release
			return nil // nobody hears it
		}, retryrmq.DLX(), patient, retryrmq.HandlerTimeout(limit))
		eventually(t, "both are handled", func() bool { return conn.Stats("orders").Acked == 2 })
		close(release)
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if stats := conn.Stats("orders"); stats.Retried < 2 || stats.Stale != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestTheEndWaitsForAHandlerThatIsPastItsDeadline(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		release, gone := make(chan struct{}), make(chan struct{})
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt > 1 {
				return nil
			}
			<-release
			close(gone)
			return nil
		}, retryrmq.DLX(), patient, retryrmq.HandlerTimeout(limit))
		eventually(t, "it is handled, and its first delivery settled", func() bool {
			stats := conn.Stats("orders")
			return stats.Acked == 1 && stats.Retried >= 1 && stats.Outstanding == 0
		})
		c.stop()
		select {
		case err := <-c.err:
			c.err <- err
			t.Errorf("Consume returns while its handler runs: %v", err)
		case <-time.After(time.Second):
		}
		close(release)
		if err := c.end(); err != nil {
			t.Error(err)
		}
		<-gone
	})
}

func TestHandlersThatAreLeftBehindAreCounted(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		for queue, c := range map[string]struct {
			limit time.Duration
			want  string
		}{
			"settled":   {limit, `the drain timeout has left 2 handlers of "settled" running`},
			"unsettled": {time.Hour, "; 2 messages requeued unsettled"},
		} {
			conn := s.dial()
			s.queue(queue, "classic")
			s.publish(conn, queue, "a", "b")
			var all sync.WaitGroup
			all.Add(2)
			release, started := make(chan struct{}), make(chan struct{}, 2)
			consumer := s.consume(conn, queue, func(_ context.Context, m *retryrmq.Message) error {
				if m.Attempt > 1 || m.Redelivered {
					return nil
				}
				defer all.Done()
				started <- struct{}{}
				<-release
				return nil
			}, retryrmq.DLX(), patient, retryrmq.HandlerTimeout(c.limit), retryrmq.DrainTimeout(50*time.Millisecond))
			<-started
			<-started
			eventually(t, "what can be settled is", func() bool { return c.limit == time.Hour || conn.Stats(queue).Acked == 2 })
			err := consumer.end()
			if !errors.Is(err, retryrmq.ErrTimeout) || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%s: %v", queue, err)
			}
			close(release)
			all.Wait()
		}
	})
}

// Whatever a handler returns at its deadline, and however: it is too late.
func TestWhatAHandlerReturnsPastItsDeadlineDoesNotCount(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		names := numbered(300)
		s.publish(conn, "orders", names...)
		c := s.consume(conn, "orders", func(ctx context.Context, m *retryrmq.Message) error {
			<-ctx.Done()
			switch len(m.Body) % 3 {
			case 0:
				return retryrmq.Permanent(ctx.Err())
			case 1:
				panic("no")
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)), retryrmq.HandlerTimeout(5*time.Millisecond))
		eventually(t, "all are parked", func() bool { return conn.Stats("orders").Parked == uint64(len(names)) })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			if parked.Reason != retryrmq.ReasonExhausted || parked.ErrorType != "HandlerTimeout" {
				t.Fatalf("%+v", parked)
			}
		}
	})
}
