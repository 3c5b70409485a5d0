package retryrmq_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

func TestAReservedNameIsConsumedWhenItIsSaidTwice(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders.parked", "quorum")
		s.publish(conn, "orders.parked", "7")
		seen := make(chan string, 1)
		handler := func(_ context.Context, m *retryrmq.Message) error {
			seen <- string(m.Body)
			return nil
		}
		err := conn.Consume(t.Context(), "orders.parked", handler)
		if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.HasSuffix(err.Error(), "`ReservedName`") {
			t.Errorf("got %v", err)
		}
		c := s.consume(conn, "orders.parked", handler, retryrmq.ReservedName())
		if body := <-seen; body != "7" {
			t.Errorf("got %q", body)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if acked := conn.Stats("orders.parked").Acked; acked != 1 {
			t.Errorf("%d are acknowledged", acked)
		}
		// Only the option's name is put in Go's words.
		err = conn.Consume(t.Context(), "retry.parked", handler)
		if err == nil || !strings.Contains(err.Error(), "consume `retry`, ") {
			t.Errorf("got %v", err)
		}
	})
}

func TestWhatAnotherQueueLostGoesHomeOrWhereItIsSent(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		s.queue("orders.parked", "quorum")
		s.queueWith("billing", map[string]any{"x-queue-type": "quorum", "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "orders.parked"})
		s.publish(conn, "billing", "home", "away")
		c := s.consume(conn, "billing", func(context.Context, *retryrmq.Message) error { return errors.New("no") })
		eventually(t, "both are rejected", func() bool { return conn.Stats("billing").Rejected == 2 })
		if err := c.end(); err != nil {
			t.Error(err)
		}

		marks := func() map[string]string {
			found := map[string]string{}
			for parked, err := range conn.Parked(t.Context(), "orders") {
				if err != nil {
					t.Fatal(err)
				}
				if parked.Home != "billing" || !parked.ByBroker || len(parked.Mark) != 16 {
					t.Errorf("%+v", parked)
				}
				found[string(parked.Message.Body)] = parked.Mark
			}
			return found
		}
		eventually(t, "both are parked", func() bool { return len(marks()) == 2 })
		first := marks()
		if again := marks(); first["home"] == first["away"] || !reflect.DeepEqual(again, first) {
			t.Errorf("%v, and again %v", first, again)
		}
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			if string(parked.Message.Body) == "home" {
				err = parked.Replay(t.Context())
			} else {
				if err := parked.ReplayTo(t.Context(), "nowhere"); !errors.Is(err, retryrmq.ErrUnroutable) {
					t.Errorf("got %v", err)
				}
				err = parked.ReplayTo(t.Context(), "orders")
			}
			if err != nil {
				t.Error(err)
			}
		}
		for queue, body := range map[string]string{"billing": "home", "orders": "away"} {
			seen := make(chan *retryrmq.Message, 2)
			c := s.consume(conn, queue, func(_ context.Context, m *retryrmq.Message) error {
				seen <- m
				return nil
			})
			if m := <-seen; string(m.Body) != body || m.Replays != 1 {
				t.Errorf("%s has %q, replayed %d times", queue, m.Body, m.Replays)
			}
			if err := c.end(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestALoopTellsWhoElseIsThere(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queueWith("orders.parked", map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000})
		s.publish(conn, "orders.parked", numbered(40)...) // a loop is sent 32 at first
		var early, late retryrmq.ParkedWalk
		seen, taken := 0, 0
		for _, err := range conn.Parked(t.Context(), "orders", retryrmq.Watch(&early)) {
			if err != nil {
				t.Fatal(err)
			}
			seen++
			if want := (retryrmq.ParkedWalk{Remaining: 40 - seen}); early != want {
				t.Errorf("got %+v, want %+v", early, want)
			}
			if seen > 1 {
				continue
			}
			for parked, err := range conn.Parked(t.Context(), "orders", retryrmq.Watch(&late)) {
				if err == nil {
					err = parked.Drop(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				taken++
			}
		}
		if taken == 0 || seen+taken != 40 || late != (retryrmq.ParkedWalk{Others: 1}) || early != (retryrmq.ParkedWalk{Missed: taken}) {
			t.Errorf("seen %d: %+v; taken %d: %+v", seen, early, taken, late)
		}
	})
}

func TestALoopWarnsOfAParkingQueueThatMayDrop(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queueWith("orders.parked", map[string]any{"x-queue-type": "quorum", "x-max-length": 1})
		var walk retryrmq.ParkedWalk
		for _, err := range conn.Parked(t.Context(), "orders", retryrmq.Watch(&walk)) {
			t.Errorf("there is none: %v", err)
		}
		if !strings.Contains(walk.Warning, "x-max-length") {
			t.Errorf("got %+v", walk)
		}
		for _, option := range []retryrmq.ParkedOption{nil, retryrmq.Watch(nil)} {
			for _, err := range conn.Parked(t.Context(), "orders", option) {
				if !errors.Is(err, retryrmq.ErrInvalidOption) {
					t.Errorf("got %v", err)
				}
			}
		}
	})
}

// A loop over many parked messages needs memory for those alone that the program keeps.
func TestALoopLetsGoOfMessagesThatAreNotKept(t *testing.T) {
	all := brokers(t)
	s := newFixture(t, all[len(all)-1]) // not in parallel: the native objects of other tests are counted as well
	conn := s.dial()
	s.queue("orders", "quorum")
	s.queueWith("orders.parked", map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000})
	const count, kept = 300, 5
	s.publish(conn, "orders.parked", numbered(count)...)
	before := native.LiveObjects()
	var held []*retryrmq.ParkedMessage
	seen := 0
	for parked, err := range conn.Parked(t.Context(), "orders") {
		if err != nil {
			t.Fatal(err)
		}
		if seen++; len(held) < kept {
			held = append(held, parked)
		}
		if seen < count {
			continue
		}
		eventually(t, "the others are let go", func() bool {
			runtime.GC()
			// The walk, the messages that are kept, and the one that is shown.
			return native.LiveObjects()-before <= 1+kept+1
		})
		for _, parked := range held {
			// What failed can be tried again.
			if err := parked.ReplayTo(t.Context(), "nowhere"); !errors.Is(err, retryrmq.ErrUnroutable) {
				t.Errorf("got %v", err)
			}
			if err := parked.Replay(t.Context()); err != nil {
				t.Error(err)
			}
			if err := parked.Drop(t.Context()); !errors.Is(err, retryrmq.ErrInvalidOption) {
				t.Errorf("got %v", err)
			}
		}
	}
	if seen != count {
		t.Errorf("%d were shown", seen)
	}
	left := 0
	for _, err := range conn.Parked(t.Context(), "orders") {
		if err != nil {
			t.Fatal(err)
		}
		left++
	}
	if left != count-kept {
		t.Errorf("%d are parked", left)
	}
}

func TestALoopThatWaitsForItsNextMessageCanBeLeft(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		for name, leave := range map[string]func(*retryrmq.Conn, context.CancelFunc) error{
			"cancel": func(_ *retryrmq.Conn, cancel context.CancelFunc) error { cancel(); return context.Canceled },
			"close":  func(conn *retryrmq.Conn, _ context.CancelFunc) error { go conn.Close(); return retryrmq.ErrClosed },
		} {
			way := s.proxy("127.0.0.1:0")
			conn := s.dialAt(s.at(way.host()))
			const count = 300
			s.queueWith(name+".parked", map[string]any{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000})
			s.publish(conn, name+".parked", numbered(count)...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var shown atomic.Int64
			held, ended := make(chan struct{}), make(chan error)
			go func() {
				var end error
				for _, err := range conn.Parked(ctx, name) {
					if end = err; err == nil && shown.Add(1) == 1 {
						way.hold()
						close(held)
					}
				}
				ended <- end
			}()
			<-held
			before := int64(-1)
			eventually(t, "no more come", func() bool {
				was := before
				before = shown.Load()
				return was == before
			})
			want := leave(conn, cancel)
			way.release() // the end itself needs the broker
			if err := <-ended; !errors.Is(err, want) || shown.Load() == count {
				t.Errorf("%s: got %v after %d", name, err, shown.Load())
			}
		}
	})
}

// While a loop waits for its next message, copies of messages may be on their way whose originals are not acknowledged yet.
func TestALoopThatIsCutShortParksNothingTwice(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders.parked", "quorum")
		names := numbered(256) // as many are copied together
		s.publish(conn, "orders.parked", names...)
		look := func(ctx context.Context) (shown map[string]int, took time.Duration) {
			shown, begun := map[string]int{}, time.Now()
			for parked, err := range conn.Parked(ctx, "orders") {
				if err == nil {
					shown[parked.Message.MessageID]++
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			return shown, time.Since(begun)
		}
		look(t.Context()) // from now on each look needs copies
		_, took := look(t.Context())
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(took))
			look(ctx)
			cancel()
		}
		var shown map[string]int
		eventually(t, "all are back", func() bool {
			shown, _ = look(t.Context())
			return len(shown) == len(names)
		})
		for name, times := range shown {
			if times != 1 {
				t.Errorf("%s is parked %d times", name, times)
			}
		}
	})
}
