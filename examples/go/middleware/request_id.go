package middleware

import (
	"context"
	"log/slog"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// ANCHOR: middleware

type requestIDKey struct{}

// WithRequestID returns a context with a request id, as the middleware of an HTTP server makes it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// SendRequestID puts the request id of the context into the message.
func SendRequestID(next retryrmq.Publisher) retryrmq.Publisher {
	return func(ctx context.Context, message retryrmq.Publishing) error {
		if id, ok := ctx.Value(requestIDKey{}).(string); ok {
			message.Headers["x-request-id"] = id
		}
		return next(ctx, message)
	}
}

// ReadRequestID puts it into the context of the handler. Headers are written by others, so it may be missing or no string.
func ReadRequestID(next retryrmq.Handler) retryrmq.Handler {
	return func(ctx context.Context, m *retryrmq.Message) error {
		if id, ok := m.Headers()["x-request-id"].(string); ok {
			ctx = WithRequestID(ctx, id)
		}
		return next(ctx, m)
	}
}

// LogRequestID is a log handler that adds it to every line that is logged with the context.
type LogRequestID struct{ slog.Handler }

// Handle adds the request id.
func (l LogRequestID) Handle(ctx context.Context, record slog.Record) error {
	if id, ok := ctx.Value(requestIDKey{}).(string); ok {
		record.AddAttrs(slog.String("request_id", id))
	}
	return l.Handler.Handle(ctx, record)
}

// ANCHOR_END: middleware
