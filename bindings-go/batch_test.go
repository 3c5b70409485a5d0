package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

// A consumer of batches in the background.
func (s *fixture) consumeBatches(conn *retryrmq.Conn, queue string, handler retryrmq.BatchHandler, options ...retryrmq.Option) *consuming {
	ctx, stop := context.WithCancel(context.Background())
	c := &consuming{t: s.t, stop: stop, err: make(chan error, 1)}
	go func() { c.err <- conn.ConsumeBatches(ctx, queue, handler, options...) }()
	s.t.Cleanup(func() { c.end() })
	return c
}

func (l *ledger) sawAll(messages []*retryrmq.Message) {
	for _, m := range messages {
		l.saw(m)
	}
}

func settledAre(conn *retryrmq.Conn, queue string, acked, parked uint64) func() bool {
	return func() bool {
		stats := conn.Stats(queue)
		return stats.Acked == acked && stats.Parked == parked
	}
}

func TestBatchesAreHandled(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		s.publish(conn, "orders", numbered(300)...)
		var l ledger
		var largest atomic.Int64
		c := s.consumeBatches(conn, "orders", func(_ context.Context, messages []*retryrmq.Message) error {
			largest.Store(max(largest.Load(), int64(len(messages))))
			l.sawAll(messages)
			clear(messages) // they are the handler's
			return nil
		}, retryrmq.DLX(), retryrmq.Batch(100), retryrmq.BatchWait(30*time.Second), retryrmq.Concurrency(1))
		eventually(t, "all are acknowledged", func() bool { return conn.Stats("orders").Acked >= 300 && l.bodies() == 300 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if largest.Load() != 100 {
			t.Errorf("the largest batch has %d messages", largest.Load())
		}
	})
}

func TestEachMessageOfABatchEndsByItsOwnError(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		bodies := []string{"good", "flaky", "poison", "later", "unreadable"}
		s.publish(conn, "orders", bodies...)
		var flaky, later atomic.Int64
		c := s.consumeBatches(conn, "orders", func(_ context.Context, messages []*retryrmq.Message) error {
			errs := make(retryrmq.BatchErrors, len(messages))
			for i, m := range messages {
				switch string(m.Body) {
				case "flaky":
					if flaky.Store(int64(m.Attempt)); m.Attempt < 3 {
						errs[i] = errors.New("no answer")
					}
				case "poison":
					errs[i] = retryrmq.Permanent(errors.New("no such customer"))
				case "later":
					if later.Add(1) == 1 {
						errs[i] = retryrmq.Defer(10 * time.Millisecond)
					}
				case "unreadable":
					errs[i] = retryrmq.Undecodable(errors.New("not JSON"))
				}
			}
			return fmt.Errorf("bulk: %w", errs)
		}, retryrmq.DLX(), retryrmq.Batch(5), retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond).Retries(5)))
		eventually(t, "all are settled", settledAre(conn, "orders", 3, 2))
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if stats := conn.Stats("orders"); flaky.Load() != 3 || later.Load() < 2 || stats.Retried != 2 || stats.Deferred != 1 {
			t.Errorf("flaky had %d attempts, later %d: %+v", flaky.Load(), later.Load(), stats)
		}
		reasons := map[string]string{}
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			reasons[string(parked.Message.Body)] = parked.Reason + ": " + parked.Error
		}
		if reasons["poison"] != "fatal: no such customer" || reasons["unreadable"] != "undecodable: not JSON" || len(reasons) != 2 {
			t.Errorf("%v", reasons)
		}
	})
}

// What goes wrong in the call is a failed attempt at every message.
func TestAWholeBatchMayFail(t *testing.T) {
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	for name, c := range map[string]struct {
		handler      retryrmq.BatchHandler
		kind, reason string
		says         string
	}{
		"error": {func(context.Context, []*retryrmq.Message) error { return outOfStock{} }, "outOfStock", "exhausted", "out of stock"},
		"panic": {func(context.Context, []*retryrmq.Message) error { panic("oh") }, "panic", "exhausted", "panic: oh"},
		"panic with answers": {func(_ context.Context, messages []*retryrmq.Message) error {
			panic(make(retryrmq.BatchErrors, len(messages)))
		}, "panic", "exhausted", "panic: 0 of 3 messages failed"},
		"Goexit": {func(context.Context, []*retryrmq.Message) error { runtime.Goexit(); return nil }, "panic", "exhausted", "ended its goroutine"},
		"park":   {func(context.Context, []*retryrmq.Message) error { return retryrmq.Park("ask") }, "", "requested", "ask"},
		"fatal": {func(_ context.Context, messages []*retryrmq.Message) error {
			return retryrmq.Permanent(make(retryrmq.BatchErrors, len(messages)))
		}, "BatchErrors", "fatal", "0 of 3 messages failed"},
		"few": {func(context.Context, []*retryrmq.Message) error { return retryrmq.BatchErrors{nil, nil} }, "BatchAnswerError", "exhausted",
			"the handler answered 2 of 3 messages; return one answer for each, in their order"},
		"sorted": {func(_ context.Context, messages []*retryrmq.Message) error {
			slices.Reverse(messages)
			return fmt.Errorf("bulk: %w", retryrmq.BatchErrors{nil, nil, outOfStock{}})
		}, "BatchAnswerError", "exhausted", "the handler changed the slice of its messages"},
		"sorted, without answers": {func(_ context.Context, messages []*retryrmq.Message) error {
			slices.Reverse(messages)
			return outOfStock{}
		}, "outOfStock", "exhausted", "out of stock"},
		"none": {func(context.Context, []*retryrmq.Message) error { return retryrmq.BatchErrors(nil) }, "BatchAnswerError", "exhausted",
			"answered 0 of 3 messages"},
		"late": {func(ctx context.Context, _ []*retryrmq.Message) error {
			<-ctx.Done()
			return nil
		}, "HandlerTimeout", "exhausted", "took longer than 100ms"},
		"endless": {func(context.Context, []*retryrmq.Message) error {
			<-released // ignores its context
			return nil
		}, "HandlerTimeout", "exhausted", "took longer than 100ms"},
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				conn := s.dial()
				s.queue("orders", "quorum")
				s.publish(conn, "orders", numbered(3)...)
				options := []retryrmq.Option{retryrmq.DLX(), retryrmq.Batch(3), retryrmq.BatchWait(time.Minute), retryrmq.Concurrency(1),
					retryrmq.Retry(retryrmq.Fixed(10 * time.Millisecond).Retries(0))}
				limit := 30 * time.Second
				if name == "endless" {
					options = append(options, retryrmq.DrainTimeout(100*time.Millisecond))
				}
				if c.kind == "HandlerTimeout" {
					limit = 100 * time.Millisecond
				}
				consumer := s.consumeBatches(conn, "orders", c.handler, append(options, retryrmq.HandlerTimeout(limit))...)
				eventually(t, "all are parked", settledAre(conn, "orders", 0, 3))
				err := consumer.end()
				if name == "endless" {
					if !errors.Is(err, retryrmq.ErrTimeout) || strings.Contains(err.Error(), "unsettled") {
						t.Errorf("Consume: %v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				count := 0
				for parked, err := range conn.Parked(t.Context(), "orders") {
					if err != nil {
						t.Fatal(err)
					}
					count++
					if parked.ErrorType != c.kind || parked.Reason != c.reason || !strings.Contains(parked.Error, c.says) || parked.Attempts != 1 ||
						(parked.Stack == "" && c.kind != "HandlerTimeout") {
						t.Errorf("%+v", parked)
					}
				}
				if count != 3 {
					t.Errorf("%d are parked", count)
				}
			})
		})
	}
}

// A log handler that stops at lines about failed handlers.
type stoppedLog struct {
	slog.Handler
	stopped, release chan struct{}
}

func (s *stoppedLog) Handle(_ context.Context, record slog.Record) error {
	if strings.Contains(record.Message, "a handler failed") || strings.Contains(record.Message, "Fatal panicked") {
		select {
		case s.stopped <- struct{}{}:
		default:
		}
		<-s.release
	}
	return nil
}

// Neither those that succeeded nor those that failed.
func TestALogHandlerThatStopsHoldsUpNoMessageOfABatch(t *testing.T) {
	for name, fatal := range map[string]func(error) bool{
		"at the end": func(error) bool { return false }, "at its judgement": func(error) bool { panic("hm") },
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				log := &stoppedLog{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}), make(chan struct{}, 1), make(chan struct{})}
				conn := s.dial(retryrmq.Logger(slog.New(log)))
				s.queue("orders", "quorum")
				s.publish(conn, "orders", numbered(4)...)
				c := s.consumeBatches(conn, "orders", func(_ context.Context, messages []*retryrmq.Message) error {
					errs := make(retryrmq.BatchErrors, len(messages))
					errs[0], errs[2] = errors.New("no answer"), errors.New("no answer")
					return errs
				}, retryrmq.DLX(), retryrmq.Batch(4), retryrmq.BatchWait(time.Minute), retryrmq.Fatal(fatal),
					retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond).Retries(0)))
				letGo := sync.OnceFunc(func() { close(log.release) })
				t.Cleanup(letGo)
				<-log.stopped
				eventually(t, "all are settled", settledAre(conn, "orders", 2, 2))
				letGo()
				if err := c.end(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Messages of an incomplete batch that waits are requeued at the end, and were no attempt.
func TestADrainGivesBackAnIncompleteBatch(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		s.publish(conn, "orders", numbered(3)...)
		var l ledger
		c := s.consumeBatches(conn, "orders", func(_ context.Context, messages []*retryrmq.Message) error {
			l.sawAll(messages)
			return nil
		}, retryrmq.DLX(), retryrmq.Batch(10), retryrmq.BatchWait(time.Minute))
		eventually(t, "they are in hand", func() bool { return conn.Stats("orders").Outstanding == 3 })
		if err := c.end(); err != nil || l.total() != 0 {
			t.Errorf("%v after %d attempts", err, l.total())
		}
		attempts := make(chan int, 10)
		again := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			attempts <- m.Attempt
			return nil
		}, retryrmq.DLX())
		for range 3 {
			if attempt := <-attempts; attempt != 1 {
				t.Errorf("it is attempt %d", attempt)
			}
		}
		if err := again.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestADrainWaitsForABatch(t *testing.T) {
	for _, c := range []struct {
		name    string
		drain   time.Duration
		returns bool
	}{{"that returns", time.Minute, true}, {"only so long", 50 * time.Millisecond, false}} {
		t.Run(c.name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				conn := s.dial()
				s.queue("orders", "quorum")
				s.publish(conn, "orders", numbered(3)...)
				begun, release := make(chan struct{}, 10), make(chan struct{})
				consumer := s.consumeBatches(conn, "orders", func(ctx context.Context, _ []*retryrmq.Message) error {
					begun <- struct{}{}
					<-release
					return nil
				}, retryrmq.DLX(), retryrmq.Batch(3), retryrmq.BatchWait(time.Minute), retryrmq.DrainTimeout(c.drain))
				<-begun
				consumer.stop()
				if c.returns {
					close(release)
					if err := consumer.end(); err != nil || conn.Stats("orders").Acked != 3 {
						t.Errorf("%v, %+v", err, conn.Stats("orders"))
					}
					return
				}
				err := consumer.end()
				close(release)
				if !errors.Is(err, retryrmq.ErrTimeout) || !strings.Contains(err.Error(), "1 handler of") ||
					!strings.Contains(err.Error(), "3 messages requeued unsettled") {
					t.Errorf("Consume: %v", err)
				}
			})
		})
	}
}

// An incomplete batch waits for others only so long.
func TestAnIncompleteBatchIsHandled(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		for i, wait := range []time.Duration{0, 50 * time.Millisecond} {
			s.publish(conn, "orders", numbered(3)...)
			c := s.consumeBatches(conn, "orders", func(context.Context, []*retryrmq.Message) error { return nil }, retryrmq.DLX(),
				retryrmq.Batch(1000), retryrmq.BatchWait(wait), retryrmq.Prefetch(1000))
			eventually(t, "they are handled", func() bool { return conn.Stats("orders").Acked >= uint64(3*(i+1)) })
			if err := c.end(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A slow batch holds up no other.
func TestBatchesAreHandledSideBySide(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", numbered(20)...)
		var running atomic.Int64
		all := make(chan struct{})
		c := s.consumeBatches(conn, "orders", func(_ context.Context, messages []*retryrmq.Message) error {
			if running.Add(1) == 4 {
				close(all)
			}
			<-all
			return nil
		}, retryrmq.DLX(), retryrmq.Batch(5), retryrmq.Concurrency(4), retryrmq.BatchWait(time.Minute))
		eventually(t, "four handlers run, and all is acknowledged", settledAre(conn, "orders", 20, 0))
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestOptionsOfBatchesThatCannotWork(t *testing.T) {
	all := func(context.Context, []*retryrmq.Message) error { return nil }
	pass := func(next retryrmq.Handler) retryrmq.Handler { return next }
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		for word, options := range map[string][]retryrmq.Option{
			"`ConsumeBatches` needs `Batch`":                  nil,
			"`Batch` must be between 1 and 10000":             {retryrmq.Batch(0)},
			"`PrefetchBytes` must be at least 1":              {retryrmq.Batch(2), retryrmq.PrefetchBytes(0)},
			"`BatchWait` must be at most 1m":                  {retryrmq.Batch(2), retryrmq.BatchWait(time.Hour)},
			"`Prefetch` (99) must be at least `Batch` (100)":  {retryrmq.Batch(100), retryrmq.Prefetch(99)},
			"`Batch` (10000) × `Concurrency` (16) must be at": {retryrmq.Batch(10_000)},
			"wrap the handler of batches itself":              {retryrmq.Batch(2), retryrmq.Use(pass)},
		} {
			err := conn.ConsumeBatches(t.Context(), "orders", all, options...)
			if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v", word, err)
			}
		}
		if err := conn.ConsumeBatches(t.Context(), "orders", nil, retryrmq.Batch(2)); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("a nil handler: %v", err)
		}
		for word, option := range map[string]retryrmq.Option{
			"`Batch` is for `ConsumeBatches`": retryrmq.Batch(2), "`BatchWait` needs `Batch`": retryrmq.BatchWait(time.Second),
		} {
			_, simulated := retryrmqtest.Simulate(t.Context(), "orders", handled, nil, option)
			for _, err := range []error{conn.Consume(t.Context(), "orders", handled, option), simulated} {
				if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %v", word, err)
				}
			}
		}
		var none *retryrmq.Conn
		if err := none.ConsumeBatches(t.Context(), "orders", all, retryrmq.Batch(2)); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("a nil Conn: %v", err)
		}
	})
}

// A consumer of batches loses nothing when its connection is cut.
func TestBatchesAfterALostConnection(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		s.publish(conn, "orders", numbered(500)...)
		var l ledger
		c := s.consumeBatches(conn, "orders", func(_ context.Context, messages []*retryrmq.Message) error {
			l.sawAll(messages)
			time.Sleep(time.Millisecond) // so that the connection is lost in the middle
			errs := make(retryrmq.BatchErrors, len(messages))
			for i, m := range messages {
				if m.Attempt == 1 && i%2 == 0 {
					errs[i] = errors.New("no answer")
				}
			}
			return errs
		}, retryrmq.DLX(), retryrmq.Batch(10), retryrmq.BatchWait(20*time.Millisecond), retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond)))
		eventually(t, "some are handled", func() bool { return l.bodies() > 50 })
		s.disconnect()
		eventually(t, "all are handled", func() bool {
			stats := conn.Stats("orders")
			// What was handled as the connection was lost is known when it comes again.
			return l.bodies() == 500 && stats.Acked+stats.AlreadyHandled >= 500
		})
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestBatchErrorsSayHowManyFailed(t *testing.T) {
	errs := retryrmq.BatchErrors{nil, errors.New("no"), outOfStock{}}
	if errs.Error() != "2 of 3 messages failed" || !errors.Is(errs, outOfStock{}) || !slices.Contains(errs.Unwrap(), error(outOfStock{})) {
		t.Errorf("%v", errs)
	}
}
