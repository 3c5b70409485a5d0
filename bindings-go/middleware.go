package retryrmq

import (
	"context"
	"maps"
	"slices"
)

// Middleware wraps a handler, as in net/http: it returns a handler that runs around next at every attempt.
//
//	func timed(next retryrmq.Handler) retryrmq.Handler {
//		return func(ctx context.Context, m *retryrmq.Message) error {
//			began := time.Now()
//			err := next(ctx, m)
//			slog.InfoContext(ctx, "attempt", "queue", m.Queue, "took", time.Since(began), "error", err)
//			return err
//		}
//	}
//
// What it returns is what the attempt ends with, as if the handler had returned it. So it may pass on the error of next, return another one, such as
// [After] or [Park], or return nil, which acknowledges the message. It need not call next: the handler does not run then. It may pass a context with
// further values to next. It must not change the message.
//
// It runs within the handler timeout, also in a [Simulation]. A panic of next passes through it, like any other panic. Its own panic is a failed
// attempt. After the handler timeout the attempt has failed, whatever the middleware returns.
type Middleware func(next Handler) Handler

// Publisher publishes a message and waits until the broker has confirmed it, see [Conn.Publish].
type Publisher func(ctx context.Context, message Publishing) error

// PublishMiddleware wraps [Conn.Publish]: it returns a publisher that runs around next at every call.
//
//	func requestID(next retryrmq.Publisher) retryrmq.Publisher {
//		return func(ctx context.Context, message retryrmq.Publishing) error {
//			message.Headers["x-request-id"] = requestIDFrom(ctx)
//			return next(ctx, message)
//		}
//	}
//
// It may change everything in the message. Headers are a copy of the caller's, and never nil. What it returns is what Publish returns. If it does not
// call next, nothing is published.
type PublishMiddleware func(next Publisher) Publisher

// Use adds middleware around the handler of one consumer. The first is the outermost; that of [UseAll] runs outside of it. Given several times, it
// adds to what was given before. It applies to a [Simulation], too.
func Use(middleware ...Middleware) Option {
	return func(p *plan) error {
		if slices.ContainsFunc(middleware, func(m Middleware) bool { return m == nil }) {
			return invalidOption("a middleware of `Use` is nil")
		}
		p.middleware = append(p.middleware, middleware...)
		return nil
	}
}

// UseAll adds middleware around the handlers of all consumers of a connection, outside of that of [Use]. The first is the outermost. Given several
// times, it adds to what was given before.
func UseAll(middleware ...Middleware) DialOption {
	return func(d *dialOptions) { d.middleware = append(d.middleware, middleware...) }
}

// UsePublish adds middleware around [Conn.Publish]. The first is the outermost. Given several times, it adds to what was given before. Retries,
// parking and [Parked.Replay] do not pass through it: their copies keep the headers of the message.
func UsePublish(middleware ...PublishMiddleware) DialOption {
	return func(d *dialOptions) { d.publishing = append(d.publishing, middleware...) }
}

// The handler with all middleware around it; itself, if there is none.
func (p *plan) wrap(handler Handler, outer []Middleware) (Handler, error) {
	for _, group := range []struct {
		option     string
		middleware []Middleware
	}{{"Use", p.middleware}, {"UseAll", outer}} {
		for _, middleware := range slices.Backward(group.middleware) {
			if handler = middleware(handler); handler == nil {
				return nil, invalidOption("a middleware of `%s` returned a nil handler", group.option)
			}
		}
	}
	return handler, nil
}

// The publisher with all middleware around it; nil, if there is none.
func (c *Conn) wrapPublish(all []PublishMiddleware) (Publisher, error) {
	if len(all) == 0 {
		return nil, nil
	}
	publisher := Publisher(func(ctx context.Context, message Publishing) error {
		if len(message.Headers) == 0 {
			message.Headers = nil // nobody asked for an empty table
		}
		return c.publish(ctx, &message)
	})
	for _, middleware := range slices.Backward(all) {
		if publisher = middleware(publisher); publisher == nil {
			return nil, invalidOption("a middleware of `UsePublish` returned a nil publisher")
		}
	}
	return publisher, nil
}

// A copy that a middleware may change.
func (p Publishing) withOwnHeaders() Publishing {
	headers := make(Table, len(p.Headers)+1)
	maps.Copy(headers, p.Headers)
	p.Headers = headers
	return p
}

func (d *dialOptions) checkMiddleware() error {
	if slices.ContainsFunc(d.middleware, func(m Middleware) bool { return m == nil }) {
		return invalidOption("a middleware of `UseAll` is nil")
	}
	if slices.ContainsFunc(d.publishing, func(m PublishMiddleware) bool { return m == nil }) {
		return invalidOption("a middleware of `UsePublish` is nil")
	}
	return nil
}
