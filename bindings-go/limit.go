package retryrmq

import (
	"context"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// The handler timeout, for a consumer and for a simulation.
type limit struct {
	late  *tooLong
	until time.Time
}

// A limit that starts now, and the context of the handler.
func newLimit(ctx context.Context, late *tooLong) (context.Context, context.CancelFunc, limit) {
	l := limit{late, time.Now().Add(late.limit)}
	ctx, cancel := context.WithDeadlineCause(ctx, l.until, late)
	return ctx, cancel, l
}

// The error of a handler that returned err just now. From the deadline on it is always a timeout, whether the handler ignored its context or
// returned because of it.
func (l limit) counts(err error) error {
	if time.Now().Before(l.until) {
		return err
	}
	return l.late
}

// The error of a handler that ran longer than its timeout, and the cause with which its context ends.
type tooLong struct{ limit time.Duration }

func (t *tooLong) Error() string {
	return "the handler took longer than " + native.DurationText(t.limit)
}
func (t *tooLong) ErrorType() string { return "HandlerTimeout" }
func (t *tooLong) Unwrap() error     { return context.DeadlineExceeded }
