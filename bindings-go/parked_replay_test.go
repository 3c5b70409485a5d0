package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

func TestALoopOverParkedMessagesEndsWithTheConnection(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		for name, close := range map[string]func(*retryrmq.Conn){
			"in the loop": func(conn *retryrmq.Conn) { _ = conn.Close() },
			"beside it": func(conn *retryrmq.Conn) {
				closed := make(chan struct{})
				go func() {
					_ = conn.Close()
					<-closed
				}()
				close(closed)
				eventually(t, "it is closed", func() bool { return conn.MetricsText() == "" })
			},
		} {
			conn, queue := s.dial(), fmt.Sprintf("orders-%d", len(name))
			s.queue(queue, "classic")
			s.publish(conn, queue, "a", "b")
			c := s.consume(conn, queue, func(context.Context, *retryrmq.Message) error { return retryrmq.Park("no") }, retryrmq.DLX())
			eventually(t, "both are parked", func() bool { return conn.Stats(queue).Parked == 2 })
			if err := c.end(); err != nil {
				t.Error(err)
			}
			shown, last := 0, error(nil)
			for parked, err := range conn.Parked(t.Context(), queue) {
				if last = err; err != nil {
					continue
				}
				shown++
				close(conn)
				if err := parked.Replay(t.Context()); !errors.Is(err, retryrmq.ErrClosed) {
					t.Errorf("%s: replaying gives %v", name, err)
				}
			}
			if shown != 1 || !errors.Is(last, retryrmq.ErrClosed) {
				t.Errorf("%s: %d were shown, and the end is %v", name, shown, last)
			}
			again, left := s.dial(), 0
			eventually(t, "what was shown is back", func() bool {
				left = 0
				for _, err := range again.Parked(t.Context(), queue) {
					if err != nil {
						t.Fatal(err)
					}
					left++
				}
				return left == 2
			})
		}
	})
}

func TestParkedMessagesAreReplayedAndDropped(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial(retryrmq.AppVersion("1.2.3"))
		s.queue("orders", "quorum")
		s.publish(conn, "orders", numbered(6)...)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Replays > 0 {
				return nil
			}
			return retryrmq.Park("no such customer")
		}, retryrmq.DLX())
		eventually(t, "all are parked", func() bool { return conn.Stats("orders").Parked == 6 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		walk := func(visit func(int, *retryrmq.ParkedMessage) bool) (count int) {
			for parked, err := range conn.Parked(t.Context(), "orders") {
				if err != nil {
					t.Fatal(err)
				}
				count++
				if !visit(count, parked) {
					break
				}
			}
			return count
		}
		var kept *retryrmq.ParkedMessage
		walk(func(_ int, parked *retryrmq.ParkedMessage) bool { // and leave
			kept = parked
			if parked.Reason != "requested" || parked.Error != "no such customer" || parked.ParkedAt.IsZero() ||
				parked.Message.History()[0].AppVersion != "1.2.3" || len(parked.Fingerprint) != 16 {
				t.Errorf("%+v", parked)
			}
			return false
		})
		if err := kept.Replay(t.Context()); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("after its loop: %v", err)
		}
		// A walk shows what is back from the one before it; that takes the broker a moment.
		dropped, replayed := 0, 0
		eventually(t, "two are dropped and two replayed", func() bool {
			walk(func(_ int, parked *retryrmq.ParkedMessage) bool {
				var err error
				if dropped < 2 {
					dropped++
					err = parked.Drop(t.Context())
				} else if replayed < 2 {
					replayed++
					err = parked.Replay(t.Context())
					if again := parked.Replay(t.Context()); !errors.Is(again, retryrmq.ErrInvalidOption) {
						t.Errorf("replayed twice: %v", again)
					}
				}
				if err != nil {
					t.Error(err)
				}
				return true
			})
			return dropped == 2 && replayed == 2
		})
		eventually(t, "two are left", func() bool {
			return walk(func(int, *retryrmq.ParkedMessage) bool { return true }) == 2
		})
		eventually(t, "a cancelled walk ends so", func() bool {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var last error
			for _, err := range conn.Parked(ctx, "orders") {
				end()
				last = err
			}
			return errors.Is(last, context.Canceled)
		})
		for _, err := range conn.Parked(t.Context(), "nowhere") {
			if !errors.Is(err, retryrmq.ErrQueueNotFound) {
				t.Errorf("got %v", err)
			}
		}
	})
}

func TestAReplayThatIsNotWaitedForDuplicatesNothing(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		names := numbered(100)
		s.publish(conn, "orders", names...)
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return retryrmq.Park("for now") }, retryrmq.DLX())
		eventually(t, "all are parked", func() bool { return conn.Stats("orders").Parked == uint64(len(names)) })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		cut := 0
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*time.Millisecond))
			if err := parked.Replay(ctx); errors.Is(err, context.DeadlineExceeded) {
				cut++
			} else if err != nil {
				t.Error(err)
			}
			cancel()
		}
		var seen ledger
		c = s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			seen.saw(m)
			return nil
		}, retryrmq.DLX())
		// Every message is either in its queue or parked, and those that are still parked are replayed in peace.
		eventually(t, "all are handled", func() bool {
			for parked, err := range conn.Parked(t.Context(), "orders") {
				if err != nil {
					t.Fatal(err)
				}
				if err := parked.Replay(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			return seen.bodies() == len(names)
		})
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if twice := seen.total() - len(names); cut == 0 || twice != 0 {
			t.Errorf("%d replays were cut short, and %d messages came twice", cut, twice)
		}
	})
}

func TestReplaysThatNobodyRemembersAreCompleted(t *testing.T) {
	all := brokers(t)
	s := newFixture(t, all[len(all)-1]) // not in parallel: the native objects of other tests are counted as well
	conn := s.dial()
	s.queue("orders", "quorum")
	s.queue("orders.parked", "quorum")
	names := numbered(20)
	s.publish(conn, "orders.parked", names...)
	before := native.LiveObjects()
	var held []*retryrmq.ParkedMessage
	for parked, err := range conn.Parked(t.Context(), "orders") {
		if err != nil {
			t.Fatal(err)
		}
		if held = append(held, parked); len(held) < len(names) {
			continue
		}
		var replays sync.WaitGroup
		for _, parked := range held {
			replays.Add(1)
			go func() {
				defer replays.Done()
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				// The first one takes two seconds, and the others wait for it.
				if err := parked.Replay(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			}()
		}
		replays.Wait()
		held = nil
		eventually(t, "they are forgotten", func() bool {
			runtime.GC()
			return native.LiveObjects()-before <= 2 // the walk, and the message that is shown
		})
	}
	var seen ledger
	c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
		seen.saw(m)
		return nil
	})
	eventually(t, "all are replayed", func() bool { return seen.bodies() == len(names) })
	if err := c.end(); err != nil || seen.total() != len(names) {
		t.Errorf("%v; %d came", err, seen.total())
	}
}
