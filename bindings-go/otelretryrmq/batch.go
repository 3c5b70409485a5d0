package otelretryrmq

import (
	"context"
	"slices"

	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/internal/batchresult"
)

// Batch traces and measures a handler of batches:
//
//	conn.ConsumeBatches(ctx, "orders", telemetry.Batch(handle), retryrmq.DLX(), retryrmq.Batch(100))
//
// There is one span for each batch. It is a root, with a link to the publish of each message whose headers have one, and with the attributes
// messaging.batch.message_count and retryrmq.failed_messages. If a message failed, the span has the status Error and the first error. It has
// retryrmq.outcome if all messages ended alike. It records messaging.process.duration for the batch, and counts its messages in
// messaging.client.consumed.messages.
func (t *Telemetry) Batch(next retryrmq.BatchHandler) retryrmq.BatchHandler {
	return func(ctx context.Context, messages []*retryrmq.Message) error {
		a := t.beginBatch(ctx, messages)
		were := slices.Clone(messages)
		a.changed = func() bool { return !slices.Equal(messages, were) }
		return a.run(ctx, func(ctx context.Context) error { return next(ctx, messages) })
	}
}

func (t *Telemetry) beginBatch(ctx context.Context, messages []*retryrmq.Message) *attempt {
	queue := messages[0].Queue
	var links []trace.Link
	for _, m := range messages {
		link := trace.LinkFromContext(t.parent(ctx, m), AttemptKey.Int(m.Attempt))
		if link.SpanContext.IsValid() {
			link.Attributes = append(link.Attributes, given("", m.MessageID, "")...)
			links = append(links, link)
		}
	}
	a := t.start(outside(ctx), queue, len(messages), trace.WithLinks(links...), trace.WithAttributes(
		semconv.MessagingSystemRabbitMQ,
		semconv.MessagingOperationName(process),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(queue),
		semconv.MessagingBatchMessageCount(len(messages)),
	))
	a.batch = len(messages)
	return a
}

// How the messages of a batch end together, which is empty if they do not; the first error, and how many messages failed.
func ofBatch(err error, count int, changed func() bool) (outcome retryrmq.Outcome, first error, failed int) {
	each, err := batchresult.Each(err, count, changed)
	if each == nil { // one for all
		if outcome = retryrmq.OutcomeOf(err); isFailure(outcome) {
			return outcome, err, count
		}
		return outcome, nil, 0
	}
	outcome = retryrmq.OutcomeOf(each[0])
	for _, err := range each {
		own := retryrmq.OutcomeOf(err)
		if own != outcome {
			outcome = ""
		}
		if isFailure(own) {
			if failed++; failed == 1 {
				first = err
			}
		}
	}
	return outcome, first, failed
}

func isFailure(outcome retryrmq.Outcome) bool {
	return outcome != retryrmq.OutcomeAck && outcome != retryrmq.OutcomeDefer
}
