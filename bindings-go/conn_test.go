package retryrmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func TestAddressesThatCannotWork(t *testing.T) {
	for address, want := range map[string]error{
		"":                                retryrmq.ErrInvalidURL,
		"http://localhost":                retryrmq.ErrInvalidURL,
		"amqp://guest:s3cret@localhost:0": retryrmq.ErrInvalidURL,
		"amqp://guest:s3cret@:\xff":       retryrmq.ErrInvalidURL,
		"amqp://guest:s3cret@127.0.0.1:1": retryrmq.ErrUnreachable,
	} {
		_, err := retryrmq.Dial(t.Context(), address)
		if !errors.Is(err, want) {
			t.Errorf("%q: %v", address, err)
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "s3cret") {
			t.Errorf("the password is in the error: %s", text)
		}
	}
}

func TestTheEnvironmentSaysWhereTheBrokerIs(t *testing.T) {
	t.Setenv("RETRYRMQ_URL", " http://u:s3cret@localhost ")
	if _, err := retryrmq.DialEnv(t.Context()); !errors.Is(err, retryrmq.ErrInvalidURL) || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
	all := brokers(t)
	s := newStage(t, all[len(all)-1])
	t.Setenv("RETRYRMQ_URL", s.url)
	conn, err := retryrmq.DialEnv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestACancelledContextEndsTheAttemptToConnect(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := retryrmq.Dial(ended, "amqp://127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("before: %v", err)
	}
	// Somebody who accepts and says nothing.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	during, end := context.WithCancel(t.Context())
	var silent sync.WaitGroup
	silent.Add(1)
	go func() {
		defer silent.Done()
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		end()
		_, _ = io.Copy(io.Discard, connection) // until it is given up
	}()
	if _, err := retryrmq.Dial(during, "amqp://"+listener.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("during: %v", err)
	}
	silent.Wait()
}

func TestPublishingAndItsRefusals(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
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
	once(t, func(t *testing.T, s *stage) {
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
	everywhere(t, func(t *testing.T, s *stage) {
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

func TestADelayNeedsAQueue(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
		err := s.dial().Publish(t.Context(), retryrmq.Publishing{RoutingKey: "nowhere", Delay: time.Second})
		if !errors.Is(err, retryrmq.ErrQueueNotFound) || !strings.Contains(err.Error(), "NoDeclare") {
			t.Errorf("got %v", err)
		}
	})
}

func TestALoopOverParkedMessagesEndsWithTheConnection(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
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

func TestADelayedMessageIsNotEarly(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
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

func TestParkedMessagesAreReplayedAndDropped(t *testing.T) {
	everywhere(t, func(t *testing.T, s *stage) {
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
	once(t, func(t *testing.T, s *stage) {
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

func TestAClosedConnection(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		started, release := make(chan struct{}), make(chan struct{})
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error {
			close(started)
			<-release
			// What it publishes belongs to what it handles.
			return conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: "after"})
		}, retryrmq.DLX())
		s.queue("after", "classic")
		<-started
		var all sync.WaitGroup
		for range 3 { // also at the same time
			all.Add(1)
			go func() {
				defer all.Done()
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}()
		}
		eventually(t, "it is closing", func() bool {
			for _, err := range conn.Parked(t.Context(), "orders") {
				return errors.Is(err, retryrmq.ErrClosed)
			}
			return false
		})
		close(release)
		all.Wait()
		if err := c.end(); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("Consume: %v", err)
		}
		if stats := conn.Stats("orders"); stats.Acked != 1 {
			t.Errorf("%+v", stats)
		}
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		if err := conn.Consume(t.Context(), "orders", nothing); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("Consume: %v", err)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{}); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("Publish: %v", err)
		}
		for _, err := range conn.Parked(t.Context(), "orders") {
			if !errors.Is(err, retryrmq.ErrClosed) {
				t.Errorf("Parked: %v", err)
			}
		}
		if conn.MetricsText() != "" || conn.Reconnects() != 0 {
			t.Error("a closed connection has numbers")
		}
	})
}

func TestManyConnectionsComeAndGo(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
		var all sync.WaitGroup
		for range 8 {
			all.Add(1)
			go func() {
				defer all.Done()
				for range 3 {
					conn, err := retryrmq.Dial(context.Background(), s.url)
					if err != nil {
						t.Error(err)
						return
					}
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		all.Wait()
	})
}

func TestTLSAndWhatTheServerSays(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
		product, version := s.dial().Server()
		if product != "RabbitMQ" || version != s.b.version {
			t.Errorf("got %q %q", product, version)
		}
		if s.b.amqps == "" {
			return
		}
		// Without the authority's file the certificate is nobody's.
		if _, err := retryrmq.Dial(t.Context(), s.b.amqps); !errors.Is(err, retryrmq.ErrTLSFailed) {
			t.Errorf("got %v", err)
		}
		authority := os.Getenv("RETRYRMQ_TEST_CA")
		if authority == "" {
			return
		}
		conn, err := retryrmq.Dial(t.Context(), s.b.amqps+"?cacertfile="+url.QueryEscape(authority))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if product, _ := conn.Server(); product != "RabbitMQ" {
			t.Errorf("got %q", product)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "nowhere"}); !errors.Is(err, retryrmq.ErrUnroutable) {
			t.Errorf("got %v", err)
		}
		// A file in which there is no certificate.
		if _, err := retryrmq.Dial(t.Context(), s.b.amqps+"?cacertfile=conn_test.go"); !errors.Is(err, retryrmq.ErrTLSFailed) {
			t.Errorf("got %v", err)
		}
	})
}

// The only test that looks at the log, which all connections share: not beside others.
func TestLogLinesGoToSlog(t *testing.T) {
	all := brokers(t)
	s := newStage(t, all[len(all)-1])
	var log safeBuffer
	retryrmq.SetLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer retryrmq.SetLogger(nil)
	conn := s.dial()
	s.queue("orders", "classic")
	s.publish(conn, "orders", "7")
	c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return errors.New("no such thing") }, retryrmq.DLX(),
		retryrmq.Retry(retryrmq.Fixed(time.Millisecond).Retries(1)))
	for _, said := range []string{
		`level=INFO msg="retryrmq: attempt 1 of 2 of message 7 in orders failed: Error: no such thing; retry in 1ms" room=attempt`,
		`level=WARN msg="retryrmq: attempt 2 of 2 of message 7 in orders failed: Error: no such thing; parked as exhausted" room=attempt`,
		`level=DEBUG msg="retryrmq: a handler failed" `,
		`stack="*errors.errorString: no such thing"`,
	} {
		eventually(t, said+" is in the log", func() bool { return strings.Contains(log.String(), said) })
	}
	eventually(t, "the native half is in the log", func() bool { return strings.Contains(log.String(), "room=") })
	if err := c.end(); err != nil {
		t.Error(err)
	}
	s.publish(conn, "orders", "8")
	c = s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { panic(strings.Repeat("x", 1<<20)) }, retryrmq.DLX(),
		retryrmq.Fatal(func(error) bool { panic(strings.Repeat("y", 1<<20)) }), retryrmq.NoParking(),
		retryrmq.Retry(retryrmq.Fixed(time.Millisecond).Retries(0)),
		retryrmq.OnEvent(func(retryrmq.Event) { panic(strings.Repeat("z", 1<<20)) }))
	for _, what := range []string{"error=\"panic: xxx", "panic=yyy", "panic=zzz"} {
		eventually(t, what+" is in the log", func() bool { return strings.Contains(log.String(), what) })
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(log.String()) {
		if len(line) > 10_000 {
			t.Errorf("%d bytes are logged: %.200s", len(line), line)
		}
	}
}

func TestAConnectionMayHaveALoggerOfItsOwn(t *testing.T) {
	once(t, func(t *testing.T, s *stage) {
		var logs [2]safeBuffer
		for i := range logs {
			conn := s.dial(retryrmq.Logger(slog.New(slog.NewTextHandler(&logs[i], &slog.HandlerOptions{Level: slog.LevelDebug}))))
			queue := fmt.Sprintf("%s-%d", s.vhost, i)
			s.queue(queue, "classic")
			s.publish(conn, queue, "7")
			c := s.consume(conn, queue, func(context.Context, *retryrmq.Message) error { return errors.New("no") }, retryrmq.DLX(),
				retryrmq.Retry(retryrmq.Fixed(time.Millisecond).Retries(0)), retryrmq.Fatal(func(error) bool { panic("hm") }),
				retryrmq.OnEvent(func(retryrmq.Event) { panic("oh") }), retryrmq.OnReady(func() { panic("ah") }))
			eventually(t, "it is parked", func() bool { return conn.Stats(queue).Parked == 1 })
			if err := c.end(); err != nil {
				t.Error(err)
			}
			_ = conn.Close()
		}
		for i := range logs {
			text := logs[i].String()
			for _, what := range []string{"a handler failed", "panic=hm", "panic=oh", "panic=ah", "room=connection", fmt.Sprintf("%s-%d", s.vhost, i)} {
				if !strings.Contains(text, what) {
					t.Errorf("log %d does not say %q: %s", i, what, text)
				}
			}
			if strings.Count(text, "a handler failed") != 1 || strings.Contains(text, fmt.Sprintf("message.queue=%s-%d", s.vhost, 1-i)) {
				t.Errorf("log %d is of the other one, too: %s", i, text)
			}
		}
	})
}

// A publisher and an error write no lines and no escape sequences into the log. Not beside others, as above.
func TestNobodyWritesLinesIntoTheLog(t *testing.T) {
	const evil = "7\n2026/11/22 12:00:00 ERROR forged\r\x1b[2J\u2028\u009b31m"
	all := brokers(t)
	var out safeBuffer
	log.SetOutput(&out)
	slog.SetLogLoggerLevel(slog.LevelDebug)
	defer slog.SetLogLoggerLevel(slog.LevelInfo)
	defer log.SetOutput(os.Stderr)
	defer retryrmq.SetLogger(nil)
	debug := &slog.HandlerOptions{Level: slog.LevelDebug}
	seen := 0
	for name, handler := range map[string]slog.Handler{
		"default": slog.Default().Handler(), "text": slog.NewTextHandler(&out, debug), "JSON": slog.NewJSONHandler(&out, debug),
	} {
		retryrmq.SetLogger(slog.New(handler))
		s := newStage(t, all[len(all)-1])
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", evil)
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return errors.New(evil) }, retryrmq.DLX(),
			retryrmq.Retry(retryrmq.Fixed(time.Millisecond).Retries(1)), retryrmq.OnEvent(func(retryrmq.Event) { panic(evil) }),
			retryrmq.Fatal(func(error) bool { panic(evil) }))
		eventually(t, "it is parked", func() bool { return conn.Stats("orders").Parked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		written := out.String()
		if !strings.Contains(written, "forged") || !strings.Contains(written, "a handler failed") {
			t.Errorf("%s: nothing is logged: %s", name, written)
		}
		control := unicode.IsControl
		if name == "JSON" { // which escapes what JSON must, and is not for a terminal
			control = func(r rune) bool { return r < ' ' }
		}
		for line := range strings.Lines(written[seen:]) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), control) || strings.HasPrefix(line, "2026/11/22 12:00:00") {
				t.Errorf("%s: %q", name, line)
			}
		}
		seen = len(written)
	}
}

// A log handler that is stopped until it is let go.
type slowLog struct {
	slog.Handler
	lines   chan struct{}
	release chan struct{}
}

func (s *slowLog) Handle(context.Context, slog.Record) error {
	select {
	case s.lines <- struct{}{}:
	default:
	}
	<-s.release
	return nil
}

func TestCloseWaitsForTheLog(t *testing.T) {
	all := brokers(t)
	s := newStage(t, all[len(all)-1])
	log := &slowLog{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}), make(chan struct{}, 1), make(chan struct{})}
	retryrmq.SetLogger(slog.New(log))
	defer retryrmq.SetLogger(nil)
	conn := s.dial()
	<-log.lines
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = conn.Close()
	}()
	select {
	case <-closed:
		t.Error("Close returns while a line is being logged")
	case <-time.After(300 * time.Millisecond):
	}
	close(log.release)
	<-closed
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
