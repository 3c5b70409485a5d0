package retryrmq

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// A handler's error that says what is to become of the message.
type signal interface {
	error
	end(*native.Ending)
	// What went wrong; nil if there is nothing beside the signal.
	cause() error
}

type after struct {
	err   error
	delay time.Duration
}

// After is err with a delay: the attempt failed, and the message comes back in d, whatever the policy says. It counts as a
// retry. It works through any wrapping, and errors.Is and errors.As see err through it.
func After(err error, d time.Duration) error { return &after{err, d} }

func (a *after) Error() string {
	if a.err == nil {
		return "the handler asked for a retry"
	}
	return a.err.Error()
}

func (a *after) Unwrap() error { return a.err }
func (a *after) cause() error  { return a.err }

func (a *after) end(ending *native.Ending) {
	ending.What = native.Retry
	delay := uint64(max(a.delay, 0))
	ending.Delay = &delay
}

type permanent struct{ err error }

// Permanent is err, marked as one that no retry can mend: the message is parked at once, as fatal. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

func (p *permanent) Error() string             { return p.err.Error() }
func (p *permanent) Unwrap() error             { return p.err }
func (p *permanent) cause() error              { return p.err }
func (p *permanent) end(ending *native.Ending) { ending.What = native.Fatal }

type deferral struct{ delay time.Duration }

// Defer says: not now. The message comes back in d, and no attempt is spent.
func Defer(d time.Duration) error { return &deferral{d} }

func (d *deferral) Error() string { return fmt.Sprintf("deferred for %v", d.delay) }
func (d *deferral) cause() error  { return nil }

func (d *deferral) end(ending *native.Ending) {
	ending.What = native.Defer
	delay := uint64(max(d.delay, 0))
	ending.Delay = &delay
}

type parking struct{ reason string }

// Park gives the message up: it is parked now, with this reason for people to read.
func Park(reason string) error { return &parking{reason} }

func (p *parking) Error() string             { return p.reason }
func (p *parking) cause() error              { return nil }
func (p *parking) end(ending *native.Ending) { ending.What = native.Park }

// The end of an attempt that returned err. A signal counts wherever it stands in the chain; of several, the outermost.
func judge(err error, fatal func(error) bool, kinds, stack bool) *native.Ending {
	ending := &native.Ending{What: native.Retry}
	subject := err
	var found signal
	if errors.As(err, &found) {
		found.end(ending)
		if ending.What == native.Defer {
			return ending
		}
		if err == error(found) {
			subject = found.cause()
		}
	} else if fatal != nil && fatal(err) {
		ending.What = native.Fatal
	}
	ending.Error = valid(text(err))
	if subject != nil && (found == nil || found.cause() != nil) {
		names := typeNames(subject)
		ending.ErrorType = names[0]
		if kinds {
			ending.Kinds = names[1:]
		}
	}
	if stack {
		ending.Stack = valid(chain(err))
	}
	return ending
}

// What it says; people's Error methods may do anything.
func text(err error) (said string) {
	defer func() {
		if recover() != nil {
			said = fmt.Sprintf("<the text of %T cannot be had: its Error method panics>", err)
		}
	}()
	said = err.Error()
	if said == "" {
		said = typeName(reflect.TypeOf(err))
	}
	return said
}

// ErrorTyper is an error that names its own type, for rules and for the record of a parked message. Others go by the name
// of their Go type.
type ErrorTyper interface {
	error
	// ErrorType is the name, such as "NotFound".
	ErrorType() string
}

// The names of what err is and wraps: first the one that says most, then all, also with their packages.
func typeNames(err error) []string {
	var all, telling []string
	walk(err, 0, func(err error) {
		if timeout, ok := err.(interface{ Timeout() bool }); ok && timeout.Timeout() {
			all = append(all, "TimeoutError") // as Python calls it, so that one rule does for all languages
		}
		if typer, ok := err.(ErrorTyper); ok {
			telling = append(telling, typer.ErrorType())
			return
		}
		t := reflect.TypeOf(err)
		name := typeName(t)
		if isWrapper(err) {
			return
		}
		if tells(t) {
			telling = append(telling, name)
		}
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		all = append(all, t.String())
	})
	first := "error"
	if len(telling) > 0 {
		first = telling[0]
	}
	return append(append([]string{first}, telling...), all...)
}

// Calls see for err and everything that it wraps, outermost first.
func walk(err error, depth int, see func(error)) {
	if err == nil || depth > 32 {
		return
	}
	see(err)
	switch wrapper := err.(type) {
	case interface{ Unwrap() error }:
		walk(wrapper.Unwrap(), depth+1, see)
	case interface{ Unwrap() []error }:
		for _, one := range wrapper.Unwrap() {
			walk(one, depth+1, see)
		}
	}
}

func isWrapper(err error) bool {
	_, ok := err.(signal)
	return ok
}

var errorString = reflect.TypeOf(errors.New(""))

// Whether a type's name says anything: those that errors.New, fmt.Errorf and errors.Join make do not.
func tells(t reflect.Type) bool {
	if t == errorString {
		return false
	}
	switch t.String() {
	case "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError":
		return false
	}
	return true
}

func typeName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name := t.Name(); name != "" {
		return name
	}
	return t.String()
}

// The stack of a panic, or the chain of causes, one line each.
func chain(err error) string {
	var lines []string
	var stack string
	walk(err, 0, func(err error) {
		if p, ok := err.(*panicked); ok {
			stack = p.stack
		}
		lines = append(lines, fmt.Sprintf("%T: %s", err, text(err)))
	})
	if stack != "" {
		return lines[0] + "\n\n" + stack
	}
	return strings.Join(lines, "\nwraps ")
}

// The native half takes texts to be UTF-8, unseen.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
