package retryrmq_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"weak"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// What a handler keeps, for example the ids of what it has seen, keeps nothing else that came with it.
func TestWhatIsKeptOfAMessageKeepsNothingElse(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		const count = 300
		names := numbered(count)
		for i := range names { // of some size: Go lays tiny things together
			names[i] = strings.Repeat("x", 100) + names[i]
		}
		s.publish(conn, "orders", names...)
		var mu sync.Mutex
		var ids []string
		var whole []*retryrmq.Message
		var bodies, others []weak.Pointer[byte]
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, m.MessageID, m.RoutingKey)
			if len(ids)%20 == 0 {
				whole = append(whole, m)
				bodies = append(bodies, weak.Make(&m.Body[0]))
			} else {
				others = append(others, weak.Make(&m.Body[0]))
			}
			return nil
		}, retryrmq.DLX())
		eventually(t, "all are handled", func() bool { return conn.Stats("orders").Acked == count })
		eventually(t, "what nobody keeps is gone", func() bool { // also while the consumer goes on
			runtime.GC()
			mu.Lock()
			defer mu.Unlock()
			for _, other := range others {
				if other.Value() != nil {
					return false
				}
			}
			return true
		})
		if err := c.end(); err != nil {
			t.Error(err)
		}
		seen := map[string]bool{}
		for _, id := range ids {
			seen[id] = true
		}
		if len(seen) != count+1 || len(whole) != count/10 {
			t.Errorf("%d ids and %d messages", len(seen), len(whole))
		}
		for i, m := range whole {
			if bodies[i].Value() != &m.Body[0] || string(m.Body) != m.MessageID || m.Properties().MessageID != m.MessageID {
				t.Errorf("%v has the body %q", m, m.Body)
			}
		}
	})
}
