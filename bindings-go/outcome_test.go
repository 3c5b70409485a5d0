package retryrmq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// A logger, and what is in it.
func logged() (*asyncLogger, *bytes.Buffer) {
	var log bytes.Buffer
	j := &asyncLogger{}
	j.chosen.Store(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	return j, &log
}

func TestAnEndThatIsRefusedBecomesAPlainFailure(t *testing.T) {
	logger, log := logged()
	var handed []*native.End
	lines := settle(&Message{token: 7}, &native.End{What: native.Fatal, ErrorType: "\xff"}, func(token uint64, end *native.End) error {
		handed = append(handed, end)
		if token != 7 || end.ErrorType == "\xff" {
			return errors.New("not valid UTF-8")
		}
		return nil
	})
	for _, l := range lines {
		logger.log(l.level, l.message, l.attributes...)
	}
	if len(handed) != 2 || handed[1].What != native.Retry || handed[1].Error == "" {
		t.Errorf("%d ends: %+v", len(handed), handed)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "not valid UTF-8") {
		t.Errorf("the log is %s", log)
	}
}

func TestAFunctionOfFatalThatPanicsIsLogged(t *testing.T) {
	logger, log := logged()
	j := errorClassifier{fatal: []func(error) bool{func(error) bool { panic("boom") }}, log: logger}
	end := j.classify(errors.New("no"), &Message{})
	if end.What != native.Retry || end.Error != "no" {
		t.Errorf("%+v", end)
	}
	if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "boom") ||
		!strings.Contains(log.String(), "outcome_test.go") {
		t.Errorf("the log is %s", log)
	}
}

// What errors.As finds is found, and what never ends is noticed.
func TestWhatAnErrorWrapsIsFollowedToItsEnd(t *testing.T) {
	deep := Defer(time.Second)
	for range 500 {
		deep = fmt.Errorf("%w", deep)
	}
	wide := make([]error, 5000)
	for i := range wide {
		wide[i] = fmt.Errorf("one of many: %w", io.EOF)
	}
	twice := &several{}
	twice.all = []error{twice, twice}
	for name, c := range map[string]struct {
		err  error
		what uint8
	}{
		"deep":               {deep, native.Defer},
		"wide":               {errors.Join(errors.Join(wide...), Park("no")), native.Park},
		"through As":         {forwarding{Permanent(io.EOF)}, native.Fatal},
		"a tree of itself":   {twice, native.Retry},
		"behind the endless": {errors.Join(twice, Park("no")), native.Retry},
		"before the endless": {errors.Join(Park("no"), twice), native.Park},
		"fatal":              {fmt.Errorf("%w", io.ErrClosedPipe), native.Fatal},
	} {
		j := errorClassifier{fatal: []func(error) bool{func(err error) bool { return errors.Is(err, io.ErrClosedPipe) }}, kinds: true, log: &defaultLogger}
		if end := j.classify(c.err, &Message{mayPark: true}); end.What != c.what {
			t.Errorf("%s: %+v", name, end)
		}
	}
}

type several struct{ all []error }

func (s *several) Error() string   { return "several" }
func (s *several) Unwrap() []error { return s.all }

// As old libraries wrap.
type forwarding struct{ err error }

func (f forwarding) Error() string      { return f.err.Error() }
func (f forwarding) As(target any) bool { return errors.As(f.err, target) }

func TestWhateverWasPanickedWithIsShown(t *testing.T) {
	type node struct {
		Name string
		Next *node
		Any  any
	}
	round := &node{Name: "a"}
	round.Next, round.Any = round, round
	long := make([]int, mostShown)
	slice := []any{1, "two"}
	slice = append(slice, &slice)
	for _, c := range []struct {
		value any
		want  string
	}{
		{"text", "text"},
		{7, "7"},
		{nil, "nil"},
		{errors.New("an error"), "an error"},
		{struct{ A, B int }{1, 2}, "{1 2}"},
		{[]string{"a", "b"}, "[a b]"},
		{round, "&{a 0x"},
		{slice, "[1 two 0x"},
		{long, "a []int that refers to itself, or is very large"},
	} {
		if said := (&panicError{value: c.value}).text(); !strings.HasPrefix(said, c.want) {
			t.Errorf("%q, not %q", said, c.want)
		}
	}
	itself := make([]any, 1)
	itself[0] = itself
	if said := (&panicError{value: struct{ inner any }{itself}}).text(); !strings.Contains(said, "refers to itself") {
		t.Error(said)
	}
}
