package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// The address of the fixture with other hosts, and perhaps somebody else.
func (s *fixture) at(hosts string, who ...string) string {
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	login := u.User.String()
	if len(who) > 0 {
		login = strings.Join(who, ":")
	}
	return "amqp://" + login + "@" + hosts + u.Path
}

func (s *fixture) host() string {
	u, err := url.Parse(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	return u.Host
}

// A place where nobody listens. It is nobody else's until the end of the test, but a proxy of the test may listen there.
func deadHost(t *testing.T) string {
	t.Helper()
	holder, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(holder) })
	syscall.CloseOnExec(holder)
	bound := syscall.SetsockoptInt(holder, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if bound == nil {
		bound = syscall.Bind(holder, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if bound != nil {
		t.Fatal(bound)
	}
	address, err := syscall.Getsockname(holder)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", address.(*syscall.SockaddrInet4).Port)
}

// A way to the broker that can be cut, or held up for a while.
type proxy struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	open     map[net.Conn]bool
	all      sync.WaitGroup
	gate     sync.RWMutex
}

func (s *fixture) proxy(at string) *proxy {
	listener, err := net.Listen("tcp", at)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	p := &proxy{listener: listener, to: s.host(), open: map[net.Conn]bool{}}
	s.t.Cleanup(p.close)
	p.all.Add(1)
	go p.accept()
	return p
}

func (p *proxy) host() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	defer p.all.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.open[client], p.open[broker] = true, true
		p.mu.Unlock()
		p.all.Add(2)
		go p.pass(client, broker)
		go p.pass(broker, client)
	}
}

func (p *proxy) pass(from, to net.Conn) {
	defer p.all.Done()
	_, _ = io.Copy(gated{to, &p.gate}, from)
	_, _ = from.Close(), to.Close()
}

// Writes while its way is not held up.
type gated struct {
	to   io.Writer
	gate *sync.RWMutex
}

func (g gated) Write(b []byte) (int, error) {
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.to.Write(b)
}

func (p *proxy) hold()    { p.gate.Lock() }
func (p *proxy) release() { p.gate.Unlock() }

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
	clear(p.open)
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.cut()
	p.all.Wait()
}

// Somebody whose password can be changed; the first one is "old".
func (s *fixture) user() string {
	name := s.vhost + "-user"
	s.setPassword(name, "old")
	s.t.Cleanup(func() { s.manage("DELETE", "/api/users/"+name, nil) })
	s.manage("PUT", "/api/permissions/"+s.vhost+"/"+name, map[string]string{"configure": ".*", "write": ".*", "read": ".*"})
	return name
}

func (s *fixture) setPassword(name, password string) {
	s.manage("PUT", "/api/users/"+name, map[string]string{"password": password, "tags": ""})
}

func (s *fixture) dialAt(address string, options ...retryrmq.DialOption) *retryrmq.Conn {
	s.t.Helper()
	conn, err := retryrmq.Dial(s.t.Context(), address, options...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAnyOfSeveralHostsWillDo(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		dead := deadHost(t)
		for _, address := range []string{s.at(dead + "," + s.host()), s.at(dead) + ", " + s.url} {
			for range 3 { // in any order
				conn, err := retryrmq.Dial(t.Context(), address)
				if err != nil {
					t.Fatal(err)
				}
				if !conn.Healthy() {
					t.Error(conn.Trouble())
				}
				_ = conn.Close()
			}
		}
		if _, err := retryrmq.Dial(t.Context(), s.at(dead+","+dead)); !errors.Is(err, retryrmq.ErrUnreachable) {
			t.Errorf("got %v", err)
		}
		// One that refuses says more than one that is away.
		_, err := retryrmq.Dial(t.Context(), s.at(dead+","+s.host(), "guest", "sesame"), retryrmq.Wait())
		if !errors.Is(err, retryrmq.ErrAuthenticationFailed) {
			t.Errorf("got %v", err)
		}
		if _, err := retryrmq.Dial(t.Context(), "amqp://one/v,amqp://two/w"); !errors.Is(err, retryrmq.ErrInvalidURL) {
			t.Errorf("got %v", err)
		}
	})
}

func TestABrokerThatIsNotThereYetIsWaitedFor(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		host := deadHost(t)
		come := make(chan struct{})
		timer := time.AfterFunc(800*time.Millisecond, func() {
			close(come) // before anybody can connect
			s.proxy(host)
		})
		defer timer.Stop()
		conn := s.dialAt(s.at(host), retryrmq.Wait())
		select {
		case <-come:
		default:
			t.Error("connected to nobody")
		}
		if !conn.Healthy() || conn.Trouble() != "" {
			t.Error(conn.Trouble())
		}
	})
}

func TestAConnectionThatWaitsWaitsToConsumeAsWell(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way := s.proxy(deadHost(t))
		conn := s.dialAt(s.at(way.host()), retryrmq.Wait())
		way.close()
		consume := func(ctx context.Context, handler retryrmq.Handler) <-chan error {
			ended := make(chan error, 1)
			go func() { ended <- conn.Consume(ctx, "orders", handler, retryrmq.DLX()) }()
			return ended
		}
		waits := func(ended <-chan error) {
			t.Helper()
			select {
			case err := <-ended:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(700 * time.Millisecond):
			}
		}
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		// It waits for no longer than its context lives.
		ctx, end := context.WithCancel(t.Context())
		defer end()
		ended := consume(ctx, nothing)
		waits(ended)
		end()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		handled := make(chan struct{}, 1)
		ended = consume(t.Context(), func(context.Context, *retryrmq.Message) error {
			handled <- struct{}{}
			return nil
		})
		waits(ended)
		s.proxy(way.host())
		other := s.dialAt(s.url)
		eventually(t, "the queue is made", func() bool {
			return other.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", Body: []byte("x")}) == nil
		})
		<-handled
		_ = conn.Close()
		if err := <-ended; !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("got %v", err)
		}
	})
}

// It looks at the log, which all connections share: not beside others. That nothing is left of the attempt is seen at the end of
// all tests.
func TestWaitingForABrokerEndsWithTheContext(t *testing.T) {
	var said safeBuffer
	retryrmq.SetLogger(slog.New(slog.NewTextHandler(&said, nil)))
	defer retryrmq.SetLogger(nil)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() {
		_, err := retryrmq.Dial(ctx, "amqp://"+deadHost(t), retryrmq.Wait())
		ended <- err
	}()
	eventually(t, "the log says that it waits", func() bool { return strings.Contains(said.String(), "not there yet") })
	if !strings.Contains(said.String(), "level=WARN") {
		t.Error(said.String())
	}
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestHealthTellsWhyItIsNotWell(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way := s.proxy("127.0.0.1:0")
		conn := s.dialAt(s.at(way.host()))
		if !conn.Healthy() || conn.Trouble() != "" {
			t.Errorf("%q", conn.Trouble())
		}
		way.close()
		eventually(t, "it is down", func() bool { return !conn.Healthy() })
		eventually(t, "it is known why", func() bool { return strings.Contains(conn.Trouble(), "no broker answers") })
		_ = conn.Close()
		if conn.Healthy() || !strings.Contains(conn.Trouble(), "closed") {
			t.Errorf("%q", conn.Trouble())
		}
		for _, none := range []*retryrmq.Conn{nil, {}} {
			if none.Healthy() || none.Trouble() == "" {
				t.Error("a connection that is none is well")
			}
		}
	})
}

func TestMetricsTellOfConnectionsHandlersAndWhatIsParked(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		s.queue("orders", "quorum")
		conn := s.dial()
		s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error {
			return retryrmq.Park("it is tested")
		}, retryrmq.DLX())
		s.publish(conn, "orders", "x")
		for _, sample := range []string{
			`retryrmq_connection_up{purpose="consume"} 1`,
			`retryrmq_connection_up{purpose="publish"} 1`,
			`retryrmq_handler_seconds_count{queue="orders"} 1`,
			`retryrmq_parked_depth{queue="orders"} 1`,
		} {
			eventually(t, sample, func() bool { return strings.Contains(conn.MetricsText(), sample) })
		}
	})
}

func TestAPasswordThatWasChangedIsTold(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way, user := s.proxy("127.0.0.1:0"), s.user()
		s.queue("orders", "quorum")
		conn := s.dialAt(s.at(way.host(), user, "old"))
		events, ready := make(chan retryrmq.Event, 100), make(chan struct{})
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		c := s.consume(conn, "orders", nothing, retryrmq.DLX(), retryrmq.Events(events),
			retryrmq.OnReady(func() { close(ready) }))
		<-ready
		s.setPassword(user, "new")
		way.cut()
		var told retryrmq.Event
		eventually(t, "it is told", func() bool {
			select {
			case told = <-events:
			default:
			}
			return told.Name == retryrmq.EventLoginRefused
		})
		eventually(t, "it is known why", func() bool { return strings.Contains(conn.Trouble(), user) })
		for _, text := range []string{told.Error, conn.Trouble()} {
			if !strings.Contains(text, user) || strings.Contains(text, "old") {
				t.Error(text)
			}
		}
		if told.Queue != "orders" {
			t.Errorf("%+v", told)
		}
		s.setPassword(user, "old")
		eventually(t, "it is back", conn.Healthy)
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestAConnectionMayEndWhenItIsRefused(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way, user := s.proxy("127.0.0.1:0"), s.user()
		s.queue("orders", "quorum")
		conn := s.dialAt(s.at(way.host(), user, "old"), retryrmq.EndWhenRefused())
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		ready := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- conn.Consume(t.Context(), "orders", nothing, retryrmq.DLX(), retryrmq.OnReady(func() { close(ready) }))
		}()
		<-ready
		s.setPassword(user, "new")
		way.cut()
		select {
		case err := <-ended:
			if !errors.Is(err, retryrmq.ErrAuthenticationFailed) || !strings.Contains(fmt.Sprint(err), user) {
				t.Errorf("got %v", err)
			}
		case <-time.After(120 * time.Second):
			t.Fatal("Consume does not return")
		}
		if conn.Healthy() {
			t.Error("it is well")
		}
	})
}
