package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Load with failing handlers and lost connections. RETRYRMQ_SOAK says for how long (10m); a few seconds otherwise. Nothing is
// lost, and neither memory nor goroutines grow.
func TestLoadWithLostConnections(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		span := 3 * time.Second
		if text := os.Getenv("RETRYRMQ_SOAK"); text != "" {
			var err error
			if span, err = time.ParseDuration(text); err != nil {
				t.Fatal(err)
			}
		}
		conn := s.dial()
		s.queue("orders", "quorum")
		var published, handled atomic.Int64
		ready := make(chan struct{})
		// Which were handled, by number: of one size from the beginning, so that it is not what grows.
		ledger := make([]atomic.Bool, 16<<20)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			switch {
			case m.Attempt == 1 && m.Body[len(m.Body)-1] == '3':
				return errors.New("no")
			case m.Attempt == 1 && m.Body[len(m.Body)-1] == '7':
				panic("no")
			}
			number, err := strconv.Atoi(string(m.Body))
			if err != nil {
				t.Error(err)
			} else if ledger[number].CompareAndSwap(false, true) {
				handled.Add(1)
			}
			return nil
		}, retryrmq.DLX(), soon, retryrmq.Prefetch(200), retryrmq.OnReady(func() { close(ready) }))
		select { // a connection that is lost while it subscribes is an error, and none of this test's
		case <-ready:
		case err := <-c.err:
			t.Fatal(err)
		}

		began := time.Now()
		var publishing sync.WaitGroup
		for range 4 {
			publishing.Add(1)
			go func() {
				defer publishing.Done()
				for time.Since(began) < span {
					if published.Load()-handled.Load() > 5_000 {
						time.Sleep(time.Millisecond)
						continue
					}
					name := fmt.Sprint(published.Add(1))
					for conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: "orders", Body: []byte(name), MessageID: name}) != nil {
						time.Sleep(5 * time.Millisecond)
					}
				}
			}()
		}
		var early, goroutines int
		for next := time.Second; time.Since(began) < span; next += max(time.Second, span/20) {
			time.Sleep(time.Until(began.Add(min(next, span))))
			s.disconnect()
			if early == 0 && time.Since(began) > span/3 {
				early, goroutines = resident(t), runtime.NumGoroutine()
			}
		}
		publishing.Wait()
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%d published, %d handled, %+v, %s", published.Load(), handled.Load(), conn.Stats("orders"),
					s.manage("GET", "/api/queues/"+s.vhost+"?columns=name,messages_ready,messages_unacknowledged,consumers", nil))
			}
		})
		eventually(t, "everything is handled", func() bool { return handled.Load() == published.Load() })
		late, now := resident(t), runtime.NumGoroutine()
		t.Logf("%d messages, %d reconnects, resident %d KiB after a third and %d KiB at the end, %d and %d goroutines",
			published.Load(), conn.Reconnects(), early, late, goroutines, now)
		if err := c.end(); err != nil {
			t.Error(err)
		}
		if stats := conn.Stats("orders"); stats.Parked != 0 || stats.Outstanding != 0 {
			t.Errorf("%+v", stats)
		}
		if grown := late - early; early > 0 && span > time.Minute && grown > 20*1024 {
			t.Errorf("the process has grown by %d KiB", grown)
		}
	})
}

func resident(t *testing.T) (kib int) {
	debug.FreeOSMemory() // what Go holds back for later is no growth
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0 // no Linux
	}
	var size, pages int
	if _, err := fmt.Sscan(string(status), &size, &pages); err != nil {
		t.Error(err)
	}
	return pages * os.Getpagesize() / 1024
}
