package retryrmq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// A RabbitMQ for tests: one of those in RETRYRMQ_TEST_BROKERS.
type broker struct{ version, amqp, management, amqps string }

func brokers(t *testing.T) (all []broker) {
	for line := range strings.Lines(os.Getenv("RETRYRMQ_TEST_BROKERS")) {
		parts := strings.Split(strings.TrimSpace(line), "|")
		if len(parts) == 5 {
			all = append(all, broker{parts[0], parts[1], parts[2], parts[4]})
		}
	}
	if len(all) == 0 {
		t.Skip("no broker: run it through tests/broker/with-brokers")
	}
	return all
}

// The brokers of this run's matrix for a test: all, or with RETRYRMQ_TEST_MATRIX=assigned one that its name chooses.
func assigned(t *testing.T) []broker {
	all := brokers(t)
	switch matrix := os.Getenv("RETRYRMQ_TEST_MATRIX"); matrix {
	case "", "full":
		return all
	case "assigned":
		hash := fnv.New32a() // as in tests/harness
		_, _ = hash.Write([]byte(t.Name()))
		at := int(hash.Sum32()>>3) % len(all)
		return all[at : at+1]
	default:
		t.Fatalf("RETRYRMQ_TEST_MATRIX is %q: use full or assigned", matrix)
		return nil
	}
}

// Runs a test on every broker of this run's matrix, in a virtual host of its own each.
func everywhere(t *testing.T, test func(*testing.T, *fixture)) {
	for _, b := range assigned(t) {
		t.Run(b.version, func(t *testing.T) {
			t.Parallel()
			test(t, newFixture(t, b))
		})
	}
}

// Runs a test on the newest broker: what is shown has nothing to do with the broker's version.
func once(t *testing.T, test func(*testing.T, *fixture)) {
	all := brokers(t)
	t.Parallel()
	test(t, newFixture(t, all[len(all)-1]))
}

type fixture struct {
	t     *testing.T
	b     broker
	vhost string
	url   string
}

var fixtures atomic.Int64

func newFixture(t *testing.T, b broker) *fixture {
	s := &fixture{t: t, b: b, vhost: fmt.Sprintf("go-%d-%d", os.Getpid(), fixtures.Add(1))}
	s.manage("PUT", "/api/vhosts/"+s.vhost, nil)
	t.Cleanup(func() { s.manage("DELETE", "/api/vhosts/"+s.vhost, nil) })
	u, err := url.Parse(b.amqp)
	if err != nil {
		t.Fatal(err)
	}
	s.manage("PUT", "/api/permissions/"+s.vhost+"/"+u.User.Username(),
		map[string]string{"configure": ".*", "write": ".*", "read": ".*"})
	u.RawPath, u.Path = "", "/"+s.vhost
	s.url = u.String()
	return s
}

func (s *fixture) manage(method, path string, body any) []byte {
	s.t.Helper()
	encoded, _ := json.Marshal(body)
	request, err := http.NewRequest(method, s.b.management+path, bytes.NewReader(encoded))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Close = true // no connection stays behind for the search for goroutines
	if u, _ := url.Parse(s.b.amqp); u.User != nil && request.URL.User == nil {
		password, _ := u.User.Password()
		request.SetBasicAuth(u.User.Username(), password)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	// RabbitMQ says 500 of a connection that takes longer to end than it waits for that; it ends all the same.
	ends := response.StatusCode == 500 && method == "DELETE" && strings.HasPrefix(path, "/api/connections/")
	if response.StatusCode >= 300 && response.StatusCode != 404 && !ends {
		s.t.Fatalf("%s %s: %s %s", method, path, response.Status, answer)
	}
	return answer
}

func (s *fixture) queue(name, kind string) {
	s.t.Helper()
	s.queueWith(name, map[string]any{"x-queue-type": kind})
}

func (s *fixture) queueWith(name string, arguments map[string]any) {
	s.t.Helper()
	s.manage("PUT", "/api/queues/"+s.vhost+"/"+name, map[string]any{"durable": true, "arguments": arguments})
}

// Closes all AMQP connections of this fixture that the broker lists.
func (s *fixture) disconnect() {
	var connections []struct{ Name, Vhost string }
	if err := json.Unmarshal(s.manage("GET", "/api/connections", nil), &connections); err != nil {
		s.t.Error(err)
	}
	for _, connection := range connections {
		if connection.Vhost == s.vhost {
			s.manage("DELETE", "/api/connections/"+url.PathEscape(connection.Name), nil)
		}
	}
}

func (s *fixture) dial(options ...retryrmq.DialOption) *retryrmq.Conn {
	s.t.Helper()
	conn, err := retryrmq.Dial(s.t.Context(), s.url, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *fixture) publish(conn *retryrmq.Conn, queue string, bodies ...string) {
	s.t.Helper()
	var all sync.WaitGroup
	for _, body := range bodies {
		all.Add(1)
		go func() {
			defer all.Done()
			err := conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: queue, Body: []byte(body), MessageID: body})
			if err != nil {
				s.t.Error(err)
			}
		}()
	}
	all.Wait()
}

// A consumer in the background.
type consuming struct {
	t    *testing.T
	stop context.CancelFunc
	err  chan error
	once sync.Once
	got  error
}

func (s *fixture) consume(conn *retryrmq.Conn, queue string, handler retryrmq.Handler, options ...retryrmq.Option) *consuming {
	ctx, stop := context.WithCancel(context.Background())
	c := &consuming{t: s.t, stop: stop, err: make(chan error, 1)}
	go func() { c.err <- conn.Consume(ctx, queue, handler, options...) }()
	s.t.Cleanup(func() { c.end() })
	return c
}

func (c *consuming) end() error {
	c.stop()
	c.once.Do(func() {
		select {
		case c.got = <-c.err:
		case <-time.After(120 * time.Second):
			c.t.Error("Consume does not return")
		}
	})
	return c.got
}

// Waits for what must come in the end.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(120 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 120 s: %s", what)
		}
	}
}

// A handler that is content.
func handled(context.Context, *retryrmq.Message) error { return nil }

func numbered(count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprintf("m-%d", i))
	}
	return names
}

// What a handler saw, by body.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

func (l *ledger) saw(m *retryrmq.Message) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[string(m.Body)]++
	return l.seen[string(m.Body)]
}

func (l *ledger) bodies() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

func (l *ledger) total() (total int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range l.seen {
		total += times
	}
	return total
}
