package retryrmq

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// A handler that panicked, or ended its goroutine.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return "panic: " + p.text() }

func (p *panicked) text() string { return fmt.Sprint(p.value) }

// A panic with an error is that error as well, for rules.
func (p *panicked) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// ErrorType is what the record of a parked message says.
func (p *panicked) ErrorType() string { return "panic" }

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, or t.FailNow in a test)")

// Calls a handler. A panic is an error; gone is told when the handler ends its goroutine, which then ends after it.
func call(ctx context.Context, handler Handler, m *Message, gone func(error)) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if value := recover(); value != nil {
			err = &panicked{value, ownFrames(string(debug.Stack()))}
			return
		}
		gone(&panicked{errGoexit, ownFrames(string(debug.Stack()))})
	}()
	err = handler(ctx, m)
	returned = true
	return err
}

// Calls people's code that is no handler; a panic of it is what comes back.
func safely(f func()) (gone *panicked) {
	defer func() {
		if value := recover(); value != nil {
			gone = &panicked{value, ownFrames(string(debug.Stack()))}
		}
	}()
	f()
	return nil
}

// Only the frames of the handler: without those of the recovery above and of the worker below.
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
