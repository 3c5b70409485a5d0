package otelretryrmq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Attributes of our own.
const (
	// AttemptKey is the number of the attempt: 1 on first delivery.
	AttemptKey = attribute.Key("retryrmq.attempt")
	// OutcomeKey is what the handler decided: ack, retry, defer, park, fatal or undecodable, see [retryrmq.Outcome]; or requeue.
	OutcomeKey = attribute.Key("retryrmq.outcome")
	// FailedKey is how many messages of a batch failed.
	FailedKey = attribute.Key("retryrmq.failed_messages")
)

const process = "process"

// Consume is a [retryrmq.Middleware] that traces and measures attempts.
//
// The span is a child of the publish whose context is in the headers, and a root without one; headers that cannot be read count as none. An attempt
// that failed, also by a panic or the handler timeout, records its error and has the status Error. A deferral is no error. At the handler timeout the
// span ends, although the handler may still run; at the end of the drain timeout it ends with the outcome requeue.
//
// It records messaging.process.duration, by queue and error type, and messaging.client.consumed.messages, by queue.
func (t *Telemetry) Consume(next retryrmq.Handler) retryrmq.Handler {
	return func(ctx context.Context, m *retryrmq.Message) error {
		return t.begin(ctx, m).run(ctx, func(ctx context.Context) error { return next(ctx, m) })
	}
}

func isLate(cause error) bool { return retryrmq.ErrorTypeOf(cause) == "HandlerTimeout" }

// An attempt that runs.
type attempt struct {
	t        *Telemetry
	ctx      context.Context
	span     trace.Span
	began    time.Time
	measured []attribute.KeyValue
	// How many messages a batch has; 0 for a single message.
	batch int
	// Whether its handler changed the slice of its messages.
	changed func() bool
	over    atomic.Bool
}

// Calls the handler, and ends the attempt with what it returns, or before.
func (a *attempt) run(ctx context.Context, handle func(context.Context) error) error {
	stop := context.AfterFunc(ctx, func() {
		switch cause := context.Cause(ctx); {
		case isLate(cause):
			a.ended(cause)
		case errors.Is(cause, retryrmq.ErrTimeout): // of the drain: the handler is left behind
			a.end("requeue", nil)
		}
	})
	defer stop()
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover() // nil after runtime.Goexit
		a.ended(panicOf(value))
		if value != nil {
			panic(value) // within this call, so that the stack is still the handler's
		}
	}()
	err := handle(a.ctx)
	returned = true
	if cause := context.Cause(ctx); isLate(cause) {
		a.ended(cause) // whatever the handler has returned
	} else {
		a.ended(err)
	}
	return err
}

func (t *Telemetry) begin(ctx context.Context, m *retryrmq.Message) *attempt {
	return t.start(t.parent(ctx, m), m.Queue, 1, trace.WithAttributes(consuming(m)...))
}

// The context of the publish that is in the headers of a message. What was active where Consume was called belongs to that call, and not to messages.
func (t *Telemetry) parent(ctx context.Context, m *retryrmq.Message) context.Context {
	return t.propagators.Extract(outside(ctx), headers(m.Headers()))
}

func outside(ctx context.Context) context.Context {
	return baggage.ContextWithoutBaggage(trace.ContextWithSpanContext(ctx, trace.SpanContext{}))
}

func (t *Telemetry) start(ctx context.Context, queue string, count int, options ...trace.SpanStartOption) *attempt {
	a := &attempt{t: t, began: time.Now(), measured: []attribute.KeyValue{
		semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationName(process), semconv.MessagingDestinationName(queue)}}
	a.ctx, a.span = t.tracer.Start(ctx, process+" "+queue, append(options, trace.WithSpanKind(trace.SpanKindConsumer))...)
	t.consumed.AddSet(a.ctx, int64(count), attribute.NewSet(a.measured...))
	return a
}

// Ends it as err decides, once.
func (a *attempt) ended(err error) {
	if a.batch == 0 {
		outcome := retryrmq.OutcomeOf(err)
		if !isFailure(outcome) {
			err = nil
		}
		a.end(outcome, err)
		return
	}
	outcome, first, failed := ofBatch(err, a.batch, a.changed)
	a.end(outcome, first, FailedKey.Int(failed))
}

func (a *attempt) end(outcome retryrmq.Outcome, err error, more ...attribute.KeyValue) {
	if a.over.Swap(true) {
		return
	}
	a.span.SetAttributes(more...)
	if outcome != "" {
		a.span.SetAttributes(OutcomeKey.String(string(outcome)))
	}
	if err != nil {
		a.measured = append(a.measured, failed(a.span, err, retryrmq.ErrorTypeOf(err)))
	}
	a.span.End()
	a.t.processed.RecordSet(a.ctx, time.Since(a.began).Seconds(), attribute.NewSet(a.measured...))
}

func consuming(m *retryrmq.Message) []attribute.KeyValue {
	parts := []string{m.Exchange, m.RoutingKey}
	if m.RoutingKey != m.Queue {
		parts = append(parts, m.Queue)
	}
	attributes := []attribute.KeyValue{
		semconv.MessagingSystemRabbitMQ,
		semconv.MessagingOperationName(process),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(joined(parts...)),
		semconv.MessagingMessageBodySize(len(m.Body)),
		AttemptKey.Int(m.Attempt),
	}
	return append(attributes, given(m.RoutingKey, m.MessageID, m.Properties().CorrelationID)...)
}

// The error of an attempt that did not return: by a panic, or by the end of its goroutine.
func panicOf(value any) error {
	switch value := value.(type) {
	case nil:
		return &panicError{"the handler ended its goroutine"}
	case error:
		return &panicError{"panic: " + text(value)}
	case string:
		return &panicError{"panic: " + value}
	}
	return &panicError{fmt.Sprintf("panic: a value of type %T", value)} // to print it may be another panic, or never end
}

type panicError struct{ text string }

func (p *panicError) Error() string { return p.text }

// ErrorType is the type that the record of the message has.
func (p *panicError) ErrorType() string { return "panic" }
