package otelretryrmq

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const publish = "publish"

// Publish is a [retryrmq.PublishMiddleware] that traces and measures publishes.
//
// The span ends when the broker has confirmed the message, and its context is written into the headers of the message. The error type of a publish
// that fails is the code of its error, such as unroutable.
//
// It records messaging.client.operation.duration and messaging.client.sent.messages, by destination and error type. The destination is the exchange;
// for the default exchange it is the queue.
func (t *Telemetry) Publish(next retryrmq.Publisher) retryrmq.Publisher {
	return func(ctx context.Context, message retryrmq.Publishing) error {
		began := time.Now()
		to := destination(&message)
		ctx, span := t.tracer.Start(ctx, publish+" "+to, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(publishing(&message)...))
		defer span.End()
		if message.Headers == nil {
			message.Headers = retryrmq.Table{}
		}
		t.propagators.Inject(ctx, headers(message.Headers))
		err := next(ctx, message)
		measured := []attribute.KeyValue{semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationName(publish),
			semconv.MessagingDestinationName(to)}
		if err != nil {
			measured = append(measured, failed(span, err, codeOf(err)))
		}
		t.sent.AddSet(ctx, 1, attribute.NewSet(measured...))
		t.operated.RecordSet(ctx, time.Since(began).Seconds(), attribute.NewSet(append(measured, semconv.MessagingOperationTypeSend)...))
		return err
	}
}

func publishing(p *retryrmq.Publishing) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		semconv.MessagingSystemRabbitMQ,
		semconv.MessagingOperationName(publish),
		semconv.MessagingOperationTypeSend,
		semconv.MessagingDestinationName(joined(p.Exchange, p.RoutingKey)),
		semconv.MessagingMessageBodySize(len(p.Body)),
	}
	return append(attributes, given(p.RoutingKey, p.MessageID, p.CorrelationID)...)
}

// Where a message is published to, as a name of which there are few. Routing keys of an exchange may be without number, and so are the queues that
// the broker names, such as those for replies.
func destination(p *retryrmq.Publishing) string {
	switch {
	case p.Exchange != "":
		return p.Exchange
	case p.RoutingKey == "":
		return "amq.default"
	case strings.HasPrefix(p.RoutingKey, "amq."):
		return "(anonymous)"
	}
	return p.RoutingKey
}

func codeOf(err error) string {
	var ours *retryrmq.Error
	switch {
	case errors.As(err, &ours):
		return ours.Code
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return retryrmq.ErrorTypeOf(err)
}
