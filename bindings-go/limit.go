package retryrmq

import (
	"context"
	"errors"
	"fmt"
	"time"
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

// In the largest unit that leaves no remainder: as in every language.
func written(d time.Duration) string {
	ms := d.Milliseconds()
	for _, unit := range []struct {
		name string
		ms   int64
	}{{"d", 86_400_000}, {"h", 3_600_000}, {"m", 60_000}, {"s", 1000}} {
		if ms >= unit.ms && ms%unit.ms == 0 {
			return fmt.Sprintf("%d%s", ms/unit.ms, unit.name)
		}
	}
	return fmt.Sprintf("%dms", ms)
}

// The error of a handler that ran longer than its timeout.
type tooLong struct{ limit time.Duration }

func (t *tooLong) Error() string     { return "the handler took longer than " + written(t.limit) }
func (t *tooLong) ErrorType() string { return "HandlerTimeout" }
func (t *tooLong) Unwrap() error     { return context.DeadlineExceeded }
