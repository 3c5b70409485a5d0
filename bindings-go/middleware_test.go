package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

// What happened, in order.
type callLog struct {
	mu    sync.Mutex
	lines []string
}

func (d *callLog) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *callLog) read() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, " ")
}

// A middleware that writes its name before and after the handler.
func (d *callLog) around(name string) retryrmq.Middleware {
	return func(next retryrmq.Handler) retryrmq.Handler {
		return func(ctx context.Context, m *retryrmq.Message) error {
			d.write("<" + name)
			defer d.write(name + ">")
			return next(ctx, m)
		}
	}
}

func simulate(t *testing.T, handler retryrmq.Handler, options ...retryrmq.Option) *retryrmqtest.Result {
	t.Helper()
	result, err := retryrmqtest.Simulate(t.Context(), "orders", handler, []retryrmq.Publishing{{Body: []byte("7")}}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

type userKey struct{}

func TestMiddlewareRunsAroundEveryAttempt(t *testing.T) {
	var d callLog
	named := func(next retryrmq.Handler) retryrmq.Handler {
		return func(ctx context.Context, m *retryrmq.Message) error {
			return next(context.WithValue(ctx, userKey{}, "ann"), m)
		}
	}
	result := simulate(t, func(ctx context.Context, m *retryrmq.Message) error {
		d.write(ctx.Value(userKey{}).(string))
		if m.Attempt == 1 {
			return errors.New("no")
		}
		return nil
	}, retryrmq.DLX(), retryrmq.Use(d.around("a"), d.around("b")), retryrmq.Use(named))
	if got := d.read(); got != "<a <b ann b> a> <a <b ann b> a>" || len(result.Acked()) != 1 {
		t.Errorf("%s; %+v", got, result.Ends)
	}
}

func TestMiddlewareDecidesLikeAHandler(t *testing.T) {
	errGone := errors.New("the customer is gone")
	for name, c := range map[string]struct {
		middleware retryrmq.Middleware
		became     string
		reason     string
		called     int
	}{
		"translates": {func(next retryrmq.Handler) retryrmq.Handler {
			return func(ctx context.Context, m *retryrmq.Message) error {
				if err := next(ctx, m); !errors.Is(err, errGone) {
					return err
				}
				return retryrmq.Park("ask the customer")
			}
		}, retryrmq.BecameParked, retryrmq.ReasonRequested, 1},
		"swallows": {func(next retryrmq.Handler) retryrmq.Handler {
			return func(ctx context.Context, m *retryrmq.Message) error {
				_ = next(ctx, m)
				return nil
			}
		}, retryrmq.BecameAcked, "", 1},
		"skips": {func(retryrmq.Handler) retryrmq.Handler {
			return func(context.Context, *retryrmq.Message) error { return nil }
		}, retryrmq.BecameAcked, "", 0},
		"panics": {func(retryrmq.Handler) retryrmq.Handler {
			return func(context.Context, *retryrmq.Message) error { panic("broken middleware") }
		}, retryrmq.BecameParked, retryrmq.ReasonExhausted, 0},
	} {
		t.Run(name, func(t *testing.T) {
			called := 0
			result := simulate(t, func(context.Context, *retryrmq.Message) error {
				called++
				return errGone
			}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)), retryrmq.Use(c.middleware))
			if end := result.Ends[0]; end.Became != c.became || end.Reason != c.reason || called != c.called {
				t.Errorf("%+v after %d calls", end, called)
			}
		})
	}
}

func TestAPanicOfTheHandlerKeepsItsStack(t *testing.T) {
	var d callLog
	result := simulate(t, func(context.Context, *retryrmq.Message) error { panic("oh") }, retryrmq.DLX(),
		retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)), retryrmq.Use(d.around("a")))
	parked := result.Parked()[0].Message
	if stack, _ := parked.Headers()["x-retry-error-stack"].(string); !strings.Contains(stack, "middleware_test.go") || d.read() != "<a a>" {
		t.Errorf("%s; %v", d.read(), parked.Headers())
	}
}

func TestMiddlewareHasTheHandlerTimeout(t *testing.T) {
	var cause error
	late := func(next retryrmq.Handler) retryrmq.Handler {
		return func(ctx context.Context, m *retryrmq.Message) error {
			if m.Attempt > 1 {
				return next(ctx, m)
			}
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil // too late
		}
	}
	result := simulate(t, handled, retryrmq.DLX(), retryrmq.HandlerTimeout(20*time.Millisecond), retryrmq.Use(late))
	if first := result.Attempts[0]; first.Became != retryrmq.BecameRetried || !errors.Is(first.Err, context.DeadlineExceeded) {
		t.Errorf("%+v", first)
	}
	if retryrmq.ErrorTypeOf(cause) != "HandlerTimeout" || cause.Error() != result.Attempts[0].Err.Error() {
		t.Errorf("the cause is %v", cause)
	}
}

func TestMiddlewareThatCannotWorkIsRefused(t *testing.T) {
	none := func(retryrmq.Handler) retryrmq.Handler { return nil }
	for word, middleware := range map[string]retryrmq.Middleware{"middleware of `Use` is nil": nil, "nil handler": none} {
		_, err := retryrmqtest.Simulate(t.Context(), "orders", handled, nil, retryrmq.Use(middleware))
		if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	// Refused before anything is dialled.
	for word, option := range map[string]retryrmq.DialOption{
		"`UseAll` is nil": retryrmq.UseAll(nil), "`UsePublish` is nil": retryrmq.UsePublish(nil),
		"nil publisher": retryrmq.UsePublish(func(retryrmq.Publisher) retryrmq.Publisher { return nil }),
	} {
		_, err := retryrmq.Dial(t.Context(), "amqp://127.0.0.1:1", option)
		if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestMiddlewareOfTheConnectionIsOutermost(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		var d callLog
		conn := s.dial(retryrmq.UseAll(d.around("all"), d.around("inner")))
		s.queue("orders", "quorum")
		s.publish(conn, "orders", "7")
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			d.write("h")
			if m.Attempt == 1 {
				return errors.New("no")
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond)), retryrmq.Use(d.around("own")))
		eventually(t, "it is handled", func() bool { return conn.Stats("orders").Acked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		once := "<all <inner <own h own> inner> all>"
		// An attempt whose connection was lost runs again.
		if got := d.read(); strings.ReplaceAll(strings.ReplaceAll(got, once, ""), " ", "") != "" || strings.Count(got, once) < 2 {
			t.Error(got)
		}

		none := conn.Consume(t.Context(), "orders", handled, retryrmq.Use(func(retryrmq.Handler) retryrmq.Handler { return nil }))
		if !errors.Is(none, retryrmq.ErrInvalidOption) {
			t.Error(none)
		}
	})
}

func TestMiddlewareRunsAroundEveryPublish(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		errRefused := errors.New("the body is empty")
		var order []string
		outer := func(next retryrmq.Publisher) retryrmq.Publisher {
			return func(ctx context.Context, message retryrmq.Publishing) error {
				order = append(order, "outer")
				if len(message.Body) == 0 {
					return errRefused
				}
				message.Headers["request-id"] = ctx.Value(userKey{})
				return next(ctx, message)
			}
		}
		inner := func(next retryrmq.Publisher) retryrmq.Publisher {
			return func(ctx context.Context, message retryrmq.Publishing) error {
				order = append(order, "inner")
				message.AppID = "shop"
				return next(ctx, message)
			}
		}
		conn := s.dial(retryrmq.UsePublish(outer), retryrmq.UsePublish(inner))
		s.queue("orders", "quorum")
		ctx := context.WithValue(t.Context(), userKey{}, "r-1")
		if err := conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders"}); !errors.Is(err, errRefused) {
			t.Errorf("an empty one: %v", err)
		}
		headers := retryrmq.Table{"kind": "chair"}
		if err := conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders", Body: []byte("7"), Headers: headers}); err != nil {
			t.Fatal(err)
		}
		if len(headers) != 1 {
			t.Errorf("the caller's headers are %v", headers)
		}
		if err := conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "nobody", Body: []byte("8")}); !errors.Is(err, retryrmq.ErrUnroutable) {
			t.Errorf("without a queue: %v", err)
		}
		if !slices.Equal(order, []string{"outer", "outer", "inner", "outer", "inner"}) {
			t.Error(order)
		}
		messages := make(chan *retryrmq.Message, 10)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			messages <- m
			if m.Attempt == 1 {
				return errors.New("no")
			}
			return nil
		}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond)))
		eventually(t, "it is handled", func() bool { return conn.Stats("orders").Acked == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
		close(messages)
		// The copy of a retry has the headers as well.
		for m := range messages {
			if h := m.Headers(); h["request-id"] != "r-1" || h["kind"] != "chair" || m.Properties().AppID != "shop" || string(m.Body) != "7" {
				t.Errorf("%v: %v, %+v", m, h, m.Properties())
			}
		}
	})
}

func TestAPublishWithMiddlewareSendsNoEmptyHeaders(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		var passed retryrmq.Publisher
		conn := s.dial(retryrmq.UsePublish(func(next retryrmq.Publisher) retryrmq.Publisher {
			passed = next
			return next
		}))
		s.queue("orders", "classic")
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", Body: []byte("7")}); err != nil {
			t.Fatal(err)
		}
		got := make(chan retryrmq.Table, 10)
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			got <- m.Headers()
			return nil
		})
		if headers := <-got; len(headers) != 0 {
			t.Errorf("%v", headers)
		}
		if err := c.end(); err != nil {
			t.Error(err)
		}
		var none context.Context
		if err := conn.Publish(none, retryrmq.Publishing{}); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("a nil context: %v", err)
		}
		_ = conn.Close()
		for name, publish := range map[string]retryrmq.Publisher{"Publish": conn.Publish, "next": passed} {
			if err := publish(t.Context(), retryrmq.Publishing{}); !errors.Is(err, retryrmq.ErrClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
	})
}

// An error that names its type.
type outOfStock struct{}

func (outOfStock) Error() string { return "out of stock" }

func TestWhatAnErrorDecidesIsKnownToMiddleware(t *testing.T) {
	var stock outOfStock
	for _, c := range []struct {
		err     error
		outcome retryrmq.Outcome
		kind    string
	}{
		{nil, retryrmq.OutcomeAck, ""},
		{stock, retryrmq.OutcomeRetry, "outOfStock"},
		{errors.New("no"), retryrmq.OutcomeRetry, "Error"},
		{retryrmq.After(stock, time.Second), retryrmq.OutcomeRetry, "outOfStock"},
		{fmt.Errorf("order 7: %w", retryrmq.Permanent(stock)), retryrmq.OutcomeFatal, "outOfStock"},
		{retryrmq.Defer(time.Second), retryrmq.OutcomeDefer, ""},
		{errors.Join(retryrmq.Park("ask"), stock), retryrmq.OutcomePark, ""},
	} {
		if outcome, kind := retryrmq.OutcomeOf(c.err), retryrmq.ErrorTypeOf(c.err); outcome != c.outcome || kind != c.kind {
			t.Errorf("%v: %q, %q", c.err, outcome, kind)
		}
		if c.err == nil {
			continue
		}
		// As the record has it.
		result := simulate(t, func(_ context.Context, m *retryrmq.Message) error {
			if m.Headers()["x-retry-deferrals"] != nil {
				return nil
			}
			return c.err
		}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)))
		if end := result.Ends[0]; end.Message != nil {
			if kind, _ := end.Message.Headers()["x-retry-error-type"].(string); kind != c.kind {
				t.Errorf("%v: the record has %q", c.err, kind)
			}
		} else if c.outcome != retryrmq.OutcomeDefer {
			t.Errorf("%v: %+v", c.err, end)
		}
	}
}
