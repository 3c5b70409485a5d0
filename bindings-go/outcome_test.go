package retryrmq

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// What the package logs during a test, which must not run beside others.
func logged(t *testing.T) *bytes.Buffer {
	t.Helper()
	var log bytes.Buffer
	SetLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { SetLogger(nil) })
	return &log
}

func TestAnEndingThatIsRefusedBecomesAPlainFailure(t *testing.T) {
	log := logged(t)
	var handed []*native.Ending
	settle(&Message{token: 7}, &native.Ending{What: native.Fatal, ErrorType: "\xff"}, func(token uint64, ending *native.Ending) error {
		handed = append(handed, ending)
		if token != 7 || ending.ErrorType == "\xff" {
			return errors.New("not valid UTF-8")
		}
		return nil
	})
	if len(handed) != 2 || handed[1].What != native.Retry || handed[1].Error == "" {
		t.Errorf("%d endings: %+v", len(handed), handed)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "not valid UTF-8") {
		t.Errorf("the log is %s", log)
	}
}

func TestAFunctionOfFatalThatPanicsIsLogged(t *testing.T) {
	log := logged(t)
	ending := judge(errors.New("no"), []func(error) bool{func(error) bool { panic("boom") }}, false, false)
	if ending.What != native.Retry || ending.Error != "no" {
		t.Errorf("%+v", ending)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "boom") ||
		!strings.Contains(log.String(), "outcome_test.go") {
		t.Errorf("the log is %s", log)
	}
}
