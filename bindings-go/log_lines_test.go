package retryrmq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// The levels and lines of bindings-common/table.json, by what follows.
type logLines struct{ Levels, Lines map[string]string }

func readLines(t *testing.T) (read logLines) {
	t.Helper()
	text, err := os.ReadFile("../bindings-common/table.json")
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// The only test that looks at the log, which all connections share: not beside others.
func TestLogLinesGoToSlog(t *testing.T) {
	all := brokers(t)
	s := newFixture(t, all[len(all)-1])
	var log safeBuffer
	retryrmq.SetLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer retryrmq.SetLogger(nil)
	conn := s.dial()
	s.queue("orders", "classic")
	fails := func(context.Context, *retryrmq.Message) error { return errors.New("no answer") }
	var deferred atomic.Bool
	defers := func(context.Context, *retryrmq.Message) error {
		if deferred.Swap(true) {
			return nil
		}
		return retryrmq.Defer(100 * time.Millisecond)
	}
	retries := retryrmq.Retry(retryrmq.Fixed(200 * time.Millisecond).Retries(1))
	table := readLines(t)
	line := func(what string) string {
		return fmt.Sprintf("level=%s msg=%q ", strings.ToUpper(table.Levels[what]), "retryrmq: "+table.Lines[what])
	}
	for what, consume := range map[string]struct {
		handler retryrmq.Handler
		options []retryrmq.Option
	}{
		"parked":   {fails, []retryrmq.Option{retryrmq.DLX(), retries}},
		"dropped":  {fails, []retryrmq.Option{retryrmq.DLX(), retries, retryrmq.NoParking()}},
		"rejected": {fails, nil},
		"deferred": {defers, []retryrmq.Option{retryrmq.DLX(), retries}},
	} {
		s.publish(conn, "orders", "4711")
		c := s.consume(conn, "orders", consume.handler, consume.options...)
		eventually(t, what+" is in the log", func() bool { return strings.Contains(log.String(), line(what)) })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	}
	for _, said := range []string{line("retried"), `level=DEBUG msg="retryrmq: a handler failed" `, `stack="*errors.errorString: no answer"`, "module=attempt"} {
		eventually(t, said+" is in the log", func() bool { return strings.Contains(log.String(), said) })
	}
	s.publish(conn, "orders", "8")
	c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { panic(strings.Repeat("x", 1<<20)) }, retryrmq.DLX(),
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

func TestALineAboutAMessageHasItsFields(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		var log safeBuffer
		conn := s.dial(retryrmq.Logger(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))))
		queue := s.vhost // other tests log as well
		s.queue(queue, "classic")
		s.publish(conn, queue, "4711")
		c := s.consume(conn, queue, func(context.Context, *retryrmq.Message) error {
			return fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
		},
			retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Millisecond).Retries(1)), retryrmq.Fatal(func(error) bool { panic("hm") }))
		eventually(t, "it is parked", func() bool { return conn.Stats(queue).Parked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		attempts, steps := map[string]float64{}, map[string]any{} // the last one by line
		for text := range strings.Lines(log.String()) {
			var line map[string]any
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatal(err)
			}
			said, _ := line["msg"].(string)
			if line["queue"] == queue && strings.HasPrefix(said, "retryrmq: attempt ") {
				next, _ := line["next_step"].(string)
				steps[next] = line["attempt"]
				if line["message_id"] != "4711" || line["error"] != "no answer: i/o timeout" || line["error_type"] != "DeadlineExceededError" ||
					line["module"] != "attempt" || strings.Count(text, "no answer") != 2 {
					t.Errorf("%s", text)
				}
			}
			if line["queue"] != queue || !strings.Contains(said, "a handler failed") && !strings.Contains(said, "Fatal panicked") {
				continue
			}
			attempts[said], _ = line["attempt"].(float64)
			if line["message_id"] != "4711" || line["error"] != "no answer: i/o timeout" || line["stack"] == "" {
				t.Errorf("%s", text)
			}
			if strings.Contains(said, "a handler failed") && line["error_type"] != "DeadlineExceededError" {
				t.Errorf("%s", text)
			}
		}
		if want := map[string]any{"retried": 1.0, "parked": 2.0}; !maps.Equal(steps, want) {
			t.Errorf("what follows is %v: %s", steps, log.String())
		}
		if len(attempts) != 2 {
			t.Errorf("%d kinds of lines have fields: %s", len(attempts), log.String())
		}
		for said, attempt := range attempts {
			if attempt != 2 {
				t.Errorf("%s: the last attempt is %v", said, attempt)
			}
		}
	})
}

func TestALevelThatChangesLaterIsFollowed(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		var log safeBuffer
		var level slog.LevelVar
		level.Set(slog.LevelWarn)
		conn := s.dial(retryrmq.Logger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: &level}))))
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error { return errors.New("no") }, retryrmq.DLX(),
			retryrmq.Retry(retryrmq.Fixed(20*time.Millisecond).Retries(100_000)))
		eventually(t, "it was retried", func() bool { return conn.Stats("orders").Retried >= 2 })
		if text := log.String(); strings.Contains(text, "retry in") {
			t.Errorf("more is logged than is wanted: %s", text)
		}
		level.Set(slog.LevelInfo)
		eventually(t, "the next ones are logged", func() bool { return strings.Count(log.String(), "; retry in 20ms") >= 2 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestOnlyAConsumerThatWasToldNothingOfDLXWarnsAtItsStart(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		for options, warnings := range map[*[]retryrmq.Option]int{{}: 1, {retryrmq.NoDLX()}: 0, {retryrmq.DLX()}: 0} {
			var log safeBuffer
			conn := s.dial(retryrmq.Logger(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))))
			queue := fmt.Sprintf("%s-%d", s.vhost, len(*options)) // other tests log as well
			s.queue(queue, "classic")
			ready := make(chan struct{})
			given := append(*options, retryrmq.OnReady(func() { close(ready) }))
			c := s.consume(conn, queue, func(context.Context, *retryrmq.Message) error { return nil }, given...)
			<-ready
			if err := c.end(); err != nil {
				t.Error(err)
			}
			_ = conn.Close() // and everything is logged
			count := 0
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, "dlx was not set") && strings.Contains(line, queue) {
					count++
				}
			}
			if count != warnings {
				t.Errorf("%d warnings instead of %d: %s", count, warnings, log.String())
			}
		}
	})
}

func TestAConnectionMayHaveALoggerOfItsOwn(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
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
			for _, what := range []string{"a handler failed", "panic=hm", "panic=oh", "panic=ah", "module=connection", fmt.Sprintf("%s-%d", s.vhost, i)} {
				if !strings.Contains(text, what) {
					t.Errorf("log %d does not say %q: %s", i, what, text)
				}
			}
			if strings.Count(text, "a handler failed") != 1 || strings.Contains(text, fmt.Sprintf("queue=%s-%d ", s.vhost, 1-i)) {
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
		s := newFixture(t, all[len(all)-1])
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
	s := newFixture(t, all[len(all)-1])
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
