package retryrmq

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// What the native half says is of the process: each logger of an open connection has it, once. Not beside others: the package's logger
// is the process's.
func TestEveryLoggerHasALineOfTheNativeHalfOnce(t *testing.T) {
	defer SetLogger(nil)
	loggers, said := map[string]*slog.Logger{}, map[string]*strings.Builder{}
	for _, name := range []string{"package", "one", "other"} {
		said[name] = &strings.Builder{}
		loggers[name] = slog.New(slog.NewTextHandler(said[name], nil))
	}
	SetLogger(loggers["package"])
	for _, c := range []struct {
		open []string // "" has none of its own
		want string
	}{
		{nil, "package"},
		{[]string{""}, "package"},
		{[]string{"one"}, "one"},
		{[]string{"one", "one", "other"}, "one other"},
		{[]string{"", "", "one"}, "package one"},
		{[]string{"", "package"}, "package"},
	} {
		for _, name := range c.open {
			acquireLogger(loggers[name])
		}
		native.OnLine(native.Line{Text: "it is cold: say `work_queue`"})
		native.OnMissed(3)
		for _, name := range c.open {
			releaseLogger(loggers[name])
		}
		defaultLogger.flush()
		for name, said := range said {
			want := 0
			if strings.Contains(c.want, name) {
				want = 1
			}
			if lines := strings.Count(said.String(), "it is cold: say `WorkQueue`"); lines != want || strings.Count(said.String(), "dropped=3") != want {
				t.Errorf("%v: %s has %s", c.open, name, said)
			}
			said.Reset()
		}
	}
	if len(asyncLoggers.open) != 0 {
		t.Errorf("%d are left", len(asyncLoggers.open))
	}
}

func TestALoggerThatIsNilIsSilent(t *testing.T) {
	var d dialOptions
	Logger(nil)(&d)
	if d.logger != silent {
		t.Errorf("got %v", d.logger)
	}
	own := slog.New(slog.NewTextHandler(io.Discard, nil))
	if Logger(own)(&d); d.logger != own {
		t.Errorf("got %v", d.logger)
	}
}

// Not beside others, as above.
func TestFieldsOfTheNativeHalfAreAttributes(t *testing.T) {
	defer SetLogger(nil)
	var log bytes.Buffer
	SetLogger(slog.New(slog.NewJSONHandler(&log, nil)))
	native.OnLine(native.Line{Module: "attempt", Text: "it failed", Fields: []string{"queue", "7", "message_id", "8", "attempt", "2", "tries", "many",
		"error", strings.Repeat("x", 5000)}})
	defaultLogger.flush()
	var got map[string]any
	if err := json.Unmarshal(log.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{"level": "INFO", "msg": "retryrmq: it failed", "module": "attempt", "queue": "7", "message_id": "8", "attempt": 2.0,
		"tries": "many", "error": strings.Repeat("x", mostText) + "…"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}
