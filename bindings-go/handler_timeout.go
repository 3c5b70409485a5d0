package retryrmq

import (
	"context"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// The handler timeout, for a consumer and for a simulation.
type handlerDeadline struct {
	late  *timeoutError
	until time.Time
}

// A deadline for a handler that starts now, and the context of the handler.
func withHandlerDeadline(ctx context.Context, late *timeoutError) (context.Context, context.CancelFunc, handlerDeadline) {
	l := handlerDeadline{late, time.Now().Add(late.limit)}
	ctx, cancel := context.WithDeadlineCause(ctx, l.until, late)
	return ctx, cancel, l
}

// The error of a handler that returned err just now. From the deadline on it is always a timeout, whether the handler ignored its context or
// returned because of it.
func (l handlerDeadline) result(err error) error {
	if time.Now().Before(l.until) {
		return err
	}
	return l.late
}

// The error of a handler that ran longer than its timeout, and the cause with which its context ends.
type timeoutError struct{ limit time.Duration }

func (t *timeoutError) Error() string {
	return "the handler took longer than " + native.DurationText(t.limit)
}
func (t *timeoutError) ErrorType() string { return "HandlerTimeout" }
func (t *timeoutError) Unwrap() error     { return context.DeadlineExceeded }
