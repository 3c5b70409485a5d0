package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// An error that does something when it is asked what it wraps.
type asked struct{ unwrap func() error }

func (*asked) Error() string   { return "asked" }
func (a *asked) Unwrap() error { return a.unwrap() }

// The end waits for what people's code does with an error as long as for a handler, and no longer.
func TestTheEndWaitsForNoErrorThatIsStillAsked(t *testing.T) {
	blocks := func(release chan struct{}, begun *atomic.Int64) {
		begun.Add(1)
		<-release
	}
	for name, c := range map[string]struct {
		limit, takes time.Duration
		// What the handler returns, and whether Fatal does not return.
		wraps, fatal bool
	}{
		"fatal":                   {fatal: true},
		"unwrap":                  {wraps: true},
		"fatal with a limit":      {limit: time.Hour, fatal: true},
		"unwrap with a limit":     {limit: time.Hour, wraps: true},
		"fatal at the deadline":   {limit: 10 * time.Millisecond, takes: 20 * time.Millisecond, fatal: true},
		"unwrap after a deadline": {limit: 50 * time.Millisecond, wraps: true},
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				conn := s.dial()
				s.queue("orders", "classic")
				s.publish(conn, "orders", "7")
				release := make(chan struct{})
				var begun atomic.Int64
				options := []retryrmq.Option{retryrmq.DLX(), soon, retryrmq.DrainTimeout(50 * time.Millisecond)}
				if c.limit > 0 {
					options = append(options, retryrmq.HandlerTimeout(c.limit))
				}
				if c.fatal {
					options = append(options, retryrmq.Fatal(func(error) bool { blocks(release, &begun); return false }))
				}
				consumer := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
					time.Sleep(c.takes)
					return &asked{func() error {
						if c.wraps {
							blocks(release, &begun)
						}
						return nil
					}}
				}, options...)
				eventually(t, "it is asked", func() bool { return begun.Load() > 0 })
				if err := consumer.end(); !errors.Is(err, retryrmq.ErrTimeout) {
					t.Errorf("got %v", err)
				}
				closed := make(chan struct{})
				go func() { defer close(closed); _ = conn.Close() }()
				select {
				case <-closed:
				case <-time.After(120 * time.Second):
					t.Error("Close does not return")
				}
				close(release)
			})
		})
	}
}

// With a handler timeout a message goes on, whatever is asked of its error.
func TestAnErrorThatDoesNotAnswerHoldsNoMessage(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		release := make(chan struct{})
		var first atomic.Bool
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt > 1 {
				return nil
			}
			return &asked{func() error {
				if first.CompareAndSwap(false, true) {
					<-release
				}
				return nil
			}}
		}, retryrmq.DLX(), soon, retryrmq.HandlerTimeout(time.Second))
		eventually(t, "its second attempt is handled", func() bool { return conn.Stats("orders").Acked == 1 })
		close(release)
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if stats := conn.Stats("orders"); stats.Retried != 1 || stats.Stale != 0 || stats.Outstanding != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestAnErrorThatWrapsItselfIsAFailedAttempt(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		round := &asked{}
		round.unwrap = func() error { return round }
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt == 1 {
				return fmt.Errorf("order 7: %w", errors.Join(io.EOF, round))
			}
			return nil
		}, retryrmq.DLX(), soon, retryrmq.Fatal(func(err error) bool { return errors.Is(err, io.ErrClosedPipe) }))
		eventually(t, "its second attempt is handled", func() bool { return conn.Stats("orders").Acked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

// A panic whose value fmt would show for ever, until the stack of its goroutine is full.
func TestAPanicThatRefersToItselfIsAFailedAttempt(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "slice", "map")
		slice, table := make([]any, 1), map[string]any{}
		slice[0], table["itself"] = slice, table
		said := make(chan string, 2)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt > 1 {
				said <- m.LastError
				return nil
			}
			if string(m.Body) == "slice" {
				panic(slice)
			}
			panic(&table)
		}, retryrmq.DLX(), soon)
		for range 2 {
			if text := <-said; !strings.Contains(text, "refers to itself") {
				t.Error(text)
			}
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

// Not beside others: GODEBUG is the process's.
func TestAPanicWithNilIsAFailedAttempt(t *testing.T) {
	t.Setenv("GODEBUG", "panicnil=1")
	all := brokers(t)
	s := newFixture(t, all[len(all)-1])
	conn := s.dial()
	s.queue("orders", "classic")
	for _, limit := range []time.Duration{0, time.Hour} {
		s.publish(conn, "orders", "7")
		before := conn.Stats("orders")
		options := []retryrmq.Option{retryrmq.DLX(), soon}
		if limit > 0 {
			options = append(options, retryrmq.HandlerTimeout(limit))
		}
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt == 1 {
				panic(nil)
			}
			return nil
		}, options...)
		eventually(t, "it is handled", func() bool { return conn.Stats("orders").Acked == before.Acked+1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if stats := conn.Stats("orders"); stats.Retried != before.Retried+1 || stats.Stale != 0 {
			t.Errorf("%+v", stats)
		}
	}
}

// Listeners and functions of OnReady that do not return are left behind as handlers are.
func TestTheEndWaitsForNoListenerWithoutBound(t *testing.T) {
	for name, option := range map[string]func(wait func()) retryrmq.Option{
		"OnEvent": func(wait func()) retryrmq.Option { return retryrmq.OnEvent(func(retryrmq.Event) { wait() }) },
		"OnReady": func(wait func()) retryrmq.Option { return retryrmq.OnReady(wait) },
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				conn := s.dial()
				s.queue("orders", "classic")
				s.publish(conn, "orders", "7")
				begun, release := make(chan struct{}), make(chan struct{})
				var first sync.Once
				c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return errors.New("no") },
					retryrmq.DLX(), soon, retryrmq.DrainTimeout(50*time.Millisecond), option(func() {
						first.Do(func() { close(begun) })
						<-release
					}))
				<-begun
				if err := c.end(); !errors.Is(err, retryrmq.ErrTimeout) || !strings.Contains(err.Error(), name) {
					t.Errorf("got %v", err)
				}
				_ = conn.Close()
				close(release)
			})
		})
	}
}

// A log handler that does something bad; what is left of it logs.
type badLog struct {
	slog.Handler
	does func(text string)
}

func (l *badLog) Handle(ctx context.Context, r slog.Record) error {
	l.does(r.Message)
	return l.Handler.Handle(ctx, r)
}

// Has failing messages handled while does is what the logger does, and everything end.
func withBadLog(t *testing.T, limit time.Duration, does func(text string), drained error) {
	t.Helper()
	all := brokers(t)
	s := newFixture(t, all[len(all)-1])
	debug := &slog.HandlerOptions{Level: slog.LevelDebug}
	retryrmq.SetLogger(slog.New(&badLog{slog.NewTextHandler(io.Discard, debug), does}))
	defer retryrmq.SetLogger(nil)
	conn := s.dial()
	s.queue("orders", "classic")
	s.publish(conn, "orders", "retried", "deferred", "panics")
	var seen ledger
	// On a busy machine later attempts may take longer than the limit as well.
	options := []retryrmq.Option{retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(50 * time.Millisecond).Retries(100)),
		retryrmq.OnEvent(func(retryrmq.Event) { panic("no matter") }), retryrmq.Fatal(func(error) bool { panic("no matter") })}
	if drained != nil {
		options = append(options, retryrmq.DrainTimeout(50*time.Millisecond))
	}
	if limit > 0 {
		options = append(options, retryrmq.HandlerTimeout(limit))
	}
	c := s.consume(conn, "orders", func(ctx context.Context, m *retryrmq.Message) error {
		if seen.saw(m) > 1 {
			return nil
		}
		if limit > 0 {
			<-ctx.Done()
		}
		switch string(m.Body) {
		case "deferred":
			return retryrmq.Defer(time.Millisecond)
		case "panics":
			panic("no")
		}
		return errors.New("no")
	}, options...)
	if drained == nil {
		eventually(t, "all are handled", func() bool { return conn.Stats("orders").Acked == 3 })
	} else {
		eventually(t, "all are seen", func() bool { return seen.bodies() == 3 })
	}
	if err := c.end(); !errors.Is(err, drained) {
		t.Errorf("got %v", err)
	}
	closed := make(chan struct{})
	go func() { defer close(closed); _ = conn.Close() }()
	select {
	case <-closed:
	case <-time.After(120 * time.Second):
		t.Fatal("Close does not return")
	}
}

// Not beside others: the logger is the process's.
func TestALoggerThatEndsItsGoroutineEndsNothingElse(t *testing.T) {
	for _, limit := range []time.Duration{0, 20 * time.Millisecond} {
		withBadLog(t, limit, func(string) { runtime.Goexit() }, nil)
	}
}

func TestALoggerThatPanicsEndsNothing(t *testing.T) {
	for _, limit := range []time.Duration{0, 20 * time.Millisecond} {
		withBadLog(t, limit, func(string) { panic("the log is full") }, nil)
	}
}

func TestALoggerThatDoesNotReturnHoldsUpNoEnd(t *testing.T) {
	for _, limit := range []time.Duration{0, 20 * time.Millisecond} {
		release := make(chan struct{})
		withBadLog(t, limit, func(text string) {
			if text == "retryrmq: a handler failed" {
				<-release
			}
		}, retryrmq.ErrTimeout)
		close(release)
	}
	release := make(chan struct{})
	withBadLog(t, 0, func(text string) {
		if text != "retryrmq: a handler failed" && text != "retryrmq: a message is deferred" {
			<-release
		}
	}, retryrmq.ErrTimeout) // Fatal, whose panic is told
	close(release)
}
