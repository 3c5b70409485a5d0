package retryrmq

import (
	"context"
	"errors"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

var errTooLong = errors.New("the handler timeout has passed")

// The handler timeout, for a consumer and for a simulation.
type limit struct {
	span  time.Duration
	until time.Time
}

// A limit that starts now, and the context of the handler.
func newLimit(ctx context.Context, span time.Duration) (context.Context, context.CancelFunc, limit) {
	l := limit{span, time.Now().Add(span)}
	ctx, cancel := context.WithDeadlineCause(ctx, l.until, errTooLong)
	return ctx, cancel, l
}

// The error of a handler that returned err just now. From the deadline on it is always a timeout, whether the handler ignored its context or
// returned because of it.
func (l limit) counts(err error) error {
	if time.Now().Before(l.until) {
		return err
	}
	return &tooLong{l.span}
}

// The error of a handler that ran longer than its timeout.
type tooLong struct{ limit time.Duration }

func (t *tooLong) Error() string {
	return "the handler took longer than " + native.DurationText(t.limit)
}
func (t *tooLong) ErrorType() string { return "HandlerTimeout" }
func (t *tooLong) Unwrap() error     { return context.DeadlineExceeded }
