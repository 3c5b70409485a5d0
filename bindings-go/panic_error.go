package retryrmq

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"
)

// A handler that panicked, or ended its goroutine.
type panicError struct {
	value any
	stack string
}

func (p *panicError) Error() string { return "panic: " + p.text() }

// The value of the panic as text, as far as it can be shown.
func (p *panicError) text() (said string) {
	if catchPanic(func() { said = printed(p.value) }) != nil {
		said = fmt.Sprintf("<no panic text: printing the %T panics>", p.value)
	}
	return said
}

// A panic with an error is that error as well, for rules.
func (p *panicError) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// ErrorType returns the error type for the record of a parked message.
func (p *panicError) ErrorType() string { return "panic" }

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, or t.FailNow in a test)")

// How a goroutine ends, for a deferred function.
func goexit() error { return &panicError{errGoexit, ownFrames(string(debug.Stack()))} }

// Calls a handler. A panic becomes an error. If the handler ends its goroutine, it ends the caller's.
func call(ctx context.Context, handler Handler, m *Message) (err error) {
	returned := false
	defer func() {
		value := recover()
		if !returned { // nil is a value as well, where GODEBUG has panicnil=1
			err = &panicError{value, ownFrames(string(debug.Stack()))}
		}
	}()
	err = handler(ctx, m)
	returned = true
	return err
}

// Calls user code that is not a handler. Returns its panic, if there is one.
func catchPanic(f func()) (panicked *panicError) {
	returned := false
	defer func() {
		value := recover()
		if !returned {
			panicked = &panicError{value, ownFrames(string(debug.Stack()))}
		}
	}()
	f()
	returned = true
	return nil
}

// As fmt shows it, unless that would never end: a stack overflow is not a panic, it ends the process.
func printed(value any) string {
	switch value.(type) {
	case nil:
		return "nil"
	case error, fmt.Stringer, fmt.Formatter:
		return fmt.Sprint(value) // says it itself
	}
	v := reflect.ValueOf(value)
	if v.Kind() == reflect.Pointer {
		v = v.Elem() // further down, pointers are shown as addresses
	}
	budget := mostShown
	if !isFinite(v, 0, &budget) {
		return fmt.Sprintf("a %T that refers to itself, or is very large", value)
	}
	return fmt.Sprint(value)
}

const (
	// The most values within a value that are shown.
	mostShown = 10_000
	// And so deep.
	deepest = 100
)

func isFinite(v reflect.Value, depth int, budget *int) bool {
	if *budget--; *budget < 0 || depth > deepest {
		return false
	}
	if depth > 0 && v.IsValid() && v.CanInterface() {
		switch v.Interface().(type) {
		case error, fmt.Stringer, fmt.Formatter:
			return true
		}
	}
	switch v.Kind() {
	case reflect.Interface:
		return v.IsNil() || isFinite(v.Elem(), depth+1, budget)
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			if !isFinite(v.Index(i), depth+1, budget) {
				return false
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if !isFinite(entries.Key(), depth+1, budget) || !isFinite(entries.Value(), depth+1, budget) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !isFinite(v.Field(i), depth+1, budget) {
				return false
			}
		}
	}
	return true
}

// Only the frames of the handler, without those of the recovery above and the worker below.
func ownFrames(stack string) string {
	const ours = "github.com/retryrmq/retryrmq/bindings-go."
	lines := strings.Split(stack, "\n")
	from, to := 1, len(lines)
	for i := 1; i+1 < len(lines); i += 2 {
		if strings.HasPrefix(lines[i], "panic(") || strings.HasPrefix(lines[i], "runtime.Goexit(") {
			from = i + 2
		}
		if strings.HasPrefix(lines[i], ours+"call(") || strings.HasPrefix(lines[i], ours+"safely(") {
			to = i
			break
		}
	}
	if from >= to {
		return stack
	}
	return strings.Join(lines[from:to], "\n")
}
