package retryrmq_test

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func TestPublishingAndItsRefusals(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "nowhere"})
		if !errors.Is(err, retryrmq.ErrUnroutable) || !strings.Contains(err.Error(), "there is no queue `nowhere`") {
			t.Errorf("got %v", err)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "nowhere", Optional: true}); err != nil {
			t.Error(err)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{}); err == nil {
			t.Error("a message to nowhere was published")
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := conn.Publish(ended, retryrmq.Publishing{RoutingKey: "nowhere"}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "a\x00b"}); !errors.Is(err, retryrmq.ErrUnroutable) {
			t.Errorf("got %v", err)
		}
	})
}

func TestEmptyThingsEverywhere(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		const count = 500
		for range count / 100 {
			var all sync.WaitGroup
			for range 100 {
				all.Add(1)
				go func() {
					defer all.Done()
					err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", Headers: retryrmq.Table{"": "", "b": []byte{}, "t": retryrmq.Table{}}})
					if err != nil {
						t.Error(err)
					}
				}()
			}
			all.Wait()
		}
		// The garbage collector looks at every frame, while empty buffers go through them.
		collecting, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			for {
				select {
				case <-collecting:
					return
				default:
					runtime.GC()
				}
			}
		}()
		var seen ledger
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			if len(m.Body) != 0 || m.MessageID != "" || m.Headers()[""] != "" || m.Properties().DeliveryMode != 2 {
				t.Errorf("%+v", m)
			}
			if seen.saw(m)%50 == 0 {
				return errors.New("")
			}
			return nil
		}, retryrmq.DLX(), soon)
		eventually(t, "all are handled", func() bool { return conn.Stats("orders").Acked == count })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		close(collecting)
		<-over
	})
}

func TestHeadersOfEveryTypeGoThroughTheBroker(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		headers := retryrmq.Table{
			"bool": true, "int8": int8(-5), "uint8": uint8(200), "int16": int16(-3000), "uint16": uint16(60000), "int32": int32(-7),
			"uint32": uint32(1 << 31), "int64": int64(-1 << 62), "float32": float32(1.5), "float64": 2.5, "text": "grüße\x00",
			"decimal": retryrmq.Decimal{Scale: 2, Value: 314}, "bytes": []byte{0, 255}, "time": time.Unix(1_700_000_000, 0).UTC(),
			"void": nil, "array": []any{int64(1), "two"}, "table": retryrmq.Table{"x": "y"}, "not UTF-8": "\xff",
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", Headers: headers}); err != nil {
			t.Fatal(err)
		}
		tables := make(chan retryrmq.Table, 2)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			tables <- m.Headers()
			if m.Attempt == 1 {
				return errors.New("once more")
			}
			return nil
		}, retryrmq.DLX(), soon)
		for range 2 { // as they were published, and as they come back from a retry queue
			got := <-tables
			for name, want := range headers {
				if !reflect.DeepEqual(got[name], want) {
					t.Errorf("%s is %#v, not %#v", name, got[name], want)
				}
			}
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestPublishingWaitsUntilTheDeadlineOfItsContext(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		s.queue("orders", "classic")
		way := s.proxy("127.0.0.1:0")
		conn := s.dialAt(s.at(way.host()))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders"}); err != nil {
			t.Fatal(err)
		}
		way.close()
		var err error
		// Until it is known that the connection for publishing is lost, not only the other one.
		eventually(t, "a message waits for a connection", func() bool {
			short, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer end()
			err = conn.Publish(short, retryrmq.Publishing{RoutingKey: "orders"})
			return !errors.Is(err, retryrmq.ErrConnectionLost)
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		waits := make(chan error)
		go func() { waits <- conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders"}) }()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err := <-waits; !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("what waited got %v", err)
		}
	})
}

func TestADelayNeedsAQueue(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		err := s.dial().Publish(t.Context(), retryrmq.Publishing{RoutingKey: "nowhere", Delay: time.Second})
		if !errors.Is(err, retryrmq.ErrQueueNotFound) || !strings.Contains(err.Error(), "NoDeclare") {
			t.Errorf("got %v", err)
		}
	})
}

func TestADelayedMessageIsNotEarly(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		began := time.Now()
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", Delay: 300 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		arrived := make(chan time.Time, 1)
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error {
			arrived <- time.Now()
			return nil
		}, retryrmq.DLX())
		if at := <-arrived; at.Sub(began) < 300*time.Millisecond {
			t.Errorf("it came after %v", at.Sub(began))
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}
