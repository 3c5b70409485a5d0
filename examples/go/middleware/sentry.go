// Package middleware has three middlewares: error reports, a database transaction, and a request id that travels with a message.
package middleware

import (
	"context"

	"github.com/getsentry/sentry-go"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// ANCHOR: middleware

// ReportErrors reports failed attempts and panics to Sentry.
func ReportErrors(next retryrmq.Handler) retryrmq.Handler {
	return func(ctx context.Context, m *retryrmq.Message) error {
		hub := sentry.CurrentHub().Clone() // attempts run side by side
		hub.Scope().SetTag("queue", m.Queue)
		hub.Scope().SetContext("message", sentry.Context{"id": m.MessageID, "attempt": m.Attempt})
		defer func() {
			if value := recover(); value != nil {
				hub.RecoverWithContext(ctx, value)
				panic(value) // the attempt still fails, with the handler's stack
			}
		}()
		err := next(sentry.SetHubOnContext(ctx, hub), m)
		if err != nil && retryrmq.OutcomeOf(err) != retryrmq.OutcomeDefer {
			hub.CaptureException(err)
		}
		return err
	}
}

// ANCHOR_END: middleware
