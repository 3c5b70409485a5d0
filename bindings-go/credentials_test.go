package retryrmq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Who logs in, as long as nobody says otherwise.
type teller struct {
	mu    sync.Mutex
	ask   func(context.Context) (retryrmq.Login, error)
	calls int
}

func (t *teller) now(ask func(context.Context) (retryrmq.Login, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ask = ask
}

func (t *teller) login(user, password string) {
	t.now(func(context.Context) (retryrmq.Login, error) {
		return retryrmq.Login{User: user, Password: password}, nil
	})
}

func (t *teller) asked() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls
}

func (t *teller) tell(ctx context.Context) (retryrmq.Login, error) {
	t.mu.Lock()
	t.calls++
	ask := t.ask
	t.mu.Unlock()
	return ask(ctx)
}

// What Close takes, which is not long, whatever is still running.
func closes(t *testing.T, conn *retryrmq.Conn) {
	t.Helper()
	closed := make(chan struct{})
	go func() { defer close(closed); _ = conn.Close() }()
	select {
	case <-closed:
	case <-time.After(120 * time.Second):
		t.Fatal("Close does not return")
	}
}

func TestAFunctionIsAskedAtEveryConnection(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		way, user := s.proxy("127.0.0.1:0"), s.user()
		s.queue("orders", "quorum")
		var who teller
		who.login(user, "old")
		conn := s.dialAt(s.at(way.host(), "nobody", "nothing"), retryrmq.WithCredentials(who.tell))
		events, ready := make(chan retryrmq.Event, 100), make(chan struct{})
		c := s.consume(conn, "orders", handled, retryrmq.DLX(), retryrmq.Events(events), retryrmq.OnReady(func() { close(ready) }))
		<-ready
		s.setPassword(user, "new")
		who.login(user, "new")
		way.cut()
		eventually(t, "both connections are back", func() bool { return conn.Reconnects() >= 2 && conn.Healthy() })
		s.publish(conn, "orders", "7")
		eventually(t, "a message is handled", func() bool { return conn.Stats("orders").Acked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		for len(events) > 0 {
			if event := <-events; event.Name == retryrmq.EventLoginRefused {
				t.Errorf("%+v", event)
			}
		}
		if calls := who.asked(); calls < 4 {
			t.Errorf("it was asked %d times", calls)
		}
	})
}

func TestAPasswordMayBeInAFile(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way, user, file := s.proxy("127.0.0.1:0"), s.user(), filepath.Join(t.TempDir(), "a secret")
		write := func(password string) {
			if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("old")
		address := s.at(deadHost(t)+","+way.host(), user) + "?passwordfile=" + url.QueryEscape(file)
		conn := s.dialAt(address, retryrmq.Wait())
		s.setPassword(user, "new")
		write("new")
		way.cut()
		eventually(t, "both connections are back", func() bool { return conn.Reconnects() >= 2 && conn.Healthy() })
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		_, err := retryrmq.Dial(t.Context(), address, retryrmq.Wait())
		if !errors.Is(err, retryrmq.ErrAuthenticationFailed) || !strings.Contains(err.Error(), "a secret") {
			t.Errorf("got %v", err)
		}
	})
}

func TestALoginIsRenewedBeforeItEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		user := s.user()
		var who teller
		who.now(func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: user, Password: "old", ExpiresIn: 2 * time.Second}, nil
		})
		conn := s.dialAt(s.url, retryrmq.WithCredentials(who.tell))
		eventually(t, "both connections are renewed twice", func() bool { return who.asked() >= 6 })
		if conn.Reconnects() != 0 || !conn.Healthy() {
			t.Errorf("%d reconnects, %s", conn.Reconnects(), conn.Trouble())
		}
	})
}

func TestAFunctionThatGivesNoLogin(t *testing.T) {
	var none map[string]int
	for name, c := range map[string]struct {
		ask  func(context.Context) (retryrmq.Login, error)
		said string
	}{
		"an error": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{}, errors.New("the vault is sealed")
		}, "the vault is sealed"},
		"an error that panics": {func(context.Context) (retryrmq.Login, error) { return retryrmq.Login{}, (*asked)(nil) }, "asked"},
		"an error of many words": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{}, errors.New(strings.Repeat("no ", 1<<20) + "\xff")
		}, "no no"},
		"a panic of the runtime": {func(context.Context) (retryrmq.Login, error) {
			none["x"] = 1
			return retryrmq.Login{}, nil
		}, "panicked: assignment to entry in nil map"},
		"a panic": {func(context.Context) (retryrmq.Login, error) { panic("s3cret is wrong") }, "panicked with a string"},
		"the end of its goroutine": {func(context.Context) (retryrmq.Login, error) {
			runtime.Goexit()
			return retryrmq.Login{}, nil
		}, "Goexit"},
		"nothing": {func(context.Context) (retryrmq.Login, error) { return retryrmq.Login{}, nil }, "neither"},
		"no text": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: "guest", Password: "s3cret\xff"}, nil
		}, "`Password`"},
		"no name": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: "\xff", Password: "s3cret"}, nil
		}, "`User`"},
		"a password that is over": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: "guest", Password: "s3cret", ExpiresIn: -time.Second}, nil
		}, "`ExpiresIn` is negative"},
		"a number alone": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: "guest", Password: "s3cret", ExpiresIn: 3600}, nil
		}, "5*time.Second"},
		"a wrong password": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: "guest", Password: "s3cret"}, nil
		}, "guest"},
		"a name with more in it": {func(context.Context) (retryrmq.Login, error) {
			return retryrmq.Login{User: "a\x00guest", Password: "s3cret\x00s3cret"}, nil
		}, "zero byte"},
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				var log safeBuffer
				// It is not waited for: nothing says that it will come.
				_, err := retryrmq.Dial(t.Context(), s.url, retryrmq.WithCredentials(c.ask), retryrmq.Wait(),
					retryrmq.Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
				if !errors.Is(err, retryrmq.ErrAuthenticationFailed) {
					t.Errorf("got %v", err)
				}
				all := fmt.Sprintf("%v %+v %#v\n%s", err, err, err, log.String())
				if !strings.Contains(fmt.Sprint(err), c.said) || strings.Contains(all, "s3cret") || len(fmt.Sprint(err)) > 2000 {
					t.Errorf("%.3000s", all)
				}
			})
		})
	}
}

// The core gives it 20 seconds.
func TestAFunctionThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		left, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		_, err := retryrmq.Dial(t.Context(), s.url, retryrmq.WithCredentials(func(ctx context.Context) (retryrmq.Login, error) {
			<-ctx.Done()
			close(left)
			<-release // and does not mind
			return retryrmq.Login{User: "guest", Password: "guest"}, nil
		}))
		if !errors.Is(err, retryrmq.ErrAuthenticationFailed) || !strings.Contains(err.Error(), "did not answer within") {
			t.Errorf("got %v", err)
		}
		<-left
	})
}

type contextKey struct{}

func TestTheContextOfDialEndsTheRequest(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		for _, minds := range []bool{true, false} {
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "the value"))
			ended, release := make(chan any, 1), make(chan struct{})
			_, err := retryrmq.Dial(ctx, s.url, retryrmq.WithCredentials(func(ctx context.Context) (retryrmq.Login, error) {
				cancel()
				<-ctx.Done()
				ended <- ctx.Value(contextKey{})
				if !minds {
					<-release
				}
				return retryrmq.Login{}, ctx.Err()
			}))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if value := <-ended; value != "the value" {
				t.Errorf("the context has %v", value)
			}
			close(release)
		}
	})
}

// Each of these is asked after the connection was lost, and is still at it when the connection is closed.
func TestAFunctionHoldsUpNoEnd(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, conn *retryrmq.Conn, release chan struct{}) (retryrmq.Login, error){
		"it minds its context": func(ctx context.Context, _ *retryrmq.Conn, _ chan struct{}) (retryrmq.Login, error) {
			<-ctx.Done()
			return retryrmq.Login{}, ctx.Err()
		},
		"it does not": func(_ context.Context, _ *retryrmq.Conn, release chan struct{}) (retryrmq.Login, error) {
			<-release
			return retryrmq.Login{User: "guest", Password: "guest"}, nil
		},
		"it closes the connection": func(_ context.Context, conn *retryrmq.Conn, _ chan struct{}) (retryrmq.Login, error) {
			_ = conn.Close()
			return retryrmq.Login{}, errors.New("over")
		},
		"it publishes": func(_ context.Context, conn *retryrmq.Conn, _ chan struct{}) (retryrmq.Login, error) {
			err := conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: "orders"})
			return retryrmq.Login{}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			once(t, func(t *testing.T, s *fixture) {
				way := s.proxy("127.0.0.1:0")
				s.queue("orders", "classic")
				var who teller
				who.login("guest", "guest")
				conn := s.dialAt(s.at(way.host(), "nobody", "nothing"), retryrmq.WithCredentials(who.tell))
				ready := make(chan struct{})
				c := s.consume(conn, "orders", handled, retryrmq.DLX(), retryrmq.OnReady(func() { close(ready) }))
				<-ready
				release := make(chan struct{})
				var begun atomic.Int64
				who.now(func(ctx context.Context) (retryrmq.Login, error) {
					begun.Add(1)
					return ask(ctx, conn, release)
				})
				way.cut()
				eventually(t, "it is asked", func() bool { return begun.Load() > 0 })
				if conn.Healthy() {
					t.Error("it is well")
				}
				closes(t, conn)
				if err := c.end(); !errors.Is(err, retryrmq.ErrClosed) {
					t.Errorf("got %v", err)
				}
				close(release)
			})
		})
	}
}

// It is not the broker that refuses: what fails today may work tomorrow.
func TestAFunctionThatFailsForAWhileEndsNothing(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way := s.proxy("127.0.0.1:0")
		s.queue("orders", "classic")
		var who teller
		who.login("guest", "guest")
		conn := s.dialAt(s.at(way.host(), "nobody", "nothing"), retryrmq.WithCredentials(who.tell), retryrmq.EndWhenRefused())
		ready := make(chan struct{})
		c := s.consume(conn, "orders", handled, retryrmq.DLX(), retryrmq.OnReady(func() { close(ready) }))
		<-ready
		who.now(func(context.Context) (retryrmq.Login, error) { panic(&retryrmq.Login{Password: "s3cret"}) })
		way.cut()
		eventually(t, "it is known why", func() bool { return strings.Contains(conn.Trouble(), "panicked") })
		if strings.Contains(conn.Trouble(), "s3cret") {
			t.Error(conn.Trouble())
		}
		who.login("guest", "guest")
		eventually(t, "it is back", conn.Healthy)
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestALoginThatIsRefusedMayEndTheConnection(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		way := s.proxy("127.0.0.1:0")
		s.queue("orders", "classic")
		var who teller
		who.login("guest", "guest")
		conn := s.dialAt(s.at(way.host(), "nobody", "nothing"), retryrmq.WithCredentials(who.tell), retryrmq.EndWhenRefused())
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			ended <- conn.Consume(t.Context(), "orders", handled, retryrmq.DLX(), retryrmq.OnReady(func() { close(ready) }))
		}()
		<-ready
		who.login("guest", "s3cret")
		way.cut()
		select {
		case err := <-ended:
			if !errors.Is(err, retryrmq.ErrAuthenticationFailed) || strings.Contains(fmt.Sprint(err), "s3cret") {
				t.Errorf("got %v", err)
			}
		case <-time.After(120 * time.Second):
			t.Fatal("Consume does not return")
		}
	})
}

func TestANilFunctionIsRefused(t *testing.T) {
	_, err := retryrmq.Dial(t.Context(), "amqp://127.0.0.1:1", retryrmq.WithCredentials(nil))
	if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), "WithCredentials") {
		t.Errorf("got %v", err)
	}
}

func TestALoginDoesNotShowItsPassword(t *testing.T) {
	login := retryrmq.Login{User: "maria", Password: "s3cret", ExpiresIn: time.Minute}
	within := struct {
		Login   retryrmq.Login
		Pointer *retryrmq.Login
	}{login, &login}
	var all bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%T"} {
		for _, value := range []any{login, &login, within, &within, []retryrmq.Login{login}, map[string]retryrmq.Login{"a": login}} {
			fmt.Fprintf(&all, verb+"\n", value)
		}
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&all, nil), slog.NewJSONHandler(&all, nil)} {
		slog.New(handler).Info("login", "login", login, "pointer", &login, "within", within)
	}
	written, err := json.Marshal(within)
	if err != nil {
		t.Error(err)
	}
	all.Write(written)
	all.WriteString(login.String() + login.GoString())
	hex := fmt.Sprintf("%x", "s3cret")
	if text := all.String(); strings.Contains(text, "s3cret") || strings.Contains(text, hex) || !strings.Contains(text, "maria") {
		t.Error(text)
	}
}
