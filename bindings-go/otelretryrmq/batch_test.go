package otelretryrmq_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/otelretryrmq"
)

func TestABatchIsLinkedToItsPublishes(t *testing.T) {
	address := vhost(t)
	r := record(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	conn, err := retryrmq.Dial(ctx, address, retryrmq.UsePublish(r.Publish))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.ConsumeBatches(ctx, "orders", r.Batch(func(_ context.Context, messages []*retryrmq.Message) error {
		stop()
		errs := make(retryrmq.BatchErrors, len(messages))
		errs[1] = errors.New("no answer")
		return errs
	}), retryrmq.DLX(), retryrmq.Batch(3), retryrmq.BatchWait(time.Minute), retryrmq.OnReady(func() {
		for _, id := range []string{"1", "2", "3"} {
			// Not with ctx: the handler may end that before the last one is confirmed.
			if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders", MessageID: id}); err != nil {
				t.Error(err)
			}
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	published, batches := r.spans(trace.SpanKindProducer), r.spans(trace.SpanKindConsumer)
	if len(published) != 3 || len(batches) != 1 {
		t.Fatalf("%d publishes, %d batches", len(published), len(batches))
	}
	batch := batches[0]
	has(t, batch, map[string]any{"messaging.system": "rabbitmq", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.destination.name": "orders", "messaging.batch.message_count": int64(3), "error.type": "Error", "retryrmq.failed_messages": int64(1)})
	var wanted, linked []trace.SpanID
	for i := range published {
		wanted = append(wanted, published[i].SpanContext.SpanID())
	}
	for _, link := range batch.Links {
		linked = append(linked, link.SpanContext.SpanID())
	}
	if batch.Name != "process orders" || batch.Parent.IsValid() || batch.Status.Code != codes.Error || !slices.Equal(linked, wanted) {
		t.Errorf("%+v, not linked to %v", batch, wanted)
	}
	points := r.points(t)
	for _, point := range []string{
		"messaging.client.consumed.messages[{message}]{messaging.destination.name=orders,messaging.operation.name=process,messaging.system=rabbitmq} 3",
		"messaging.process.duration[s]{error.type=Error,messaging.destination.name=orders,messaging.operation.name=process,messaging.system=rabbitmq} 1",
	} {
		if !slices.Contains(points, point) {
			t.Errorf("%q is not in %q", point, points)
		}
	}
}

func TestHowABatchEndsIsInItsSpan(t *testing.T) {
	no := errors.New("no answer")
	for name, c := range map[string]struct {
		err     error
		outcome string
		failed  int64
		status  codes.Code
	}{
		"all":      {nil, "ack", 0, codes.Unset},
		"each":     {retryrmq.BatchErrors{nil, nil}, "ack", 0, codes.Unset},
		"one":      {retryrmq.BatchErrors{nil, no}, "", 1, codes.Error},
		"fail":     {retryrmq.BatchErrors{no, no}, "retry", 2, codes.Error},
		"deferred": {retryrmq.BatchErrors{retryrmq.Defer(time.Second), nil}, "", 0, codes.Unset},
		"later":    {retryrmq.Defer(time.Second), "defer", 0, codes.Unset},
		"none":     {no, "retry", 2, codes.Error},
		"joined":   {errors.Join(retryrmq.BatchErrors{nil, no}, errors.New("and the log")), "", 1, codes.Error},
		"fatal":    {retryrmq.Permanent(retryrmq.BatchErrors{nil, no}), "fatal", 2, codes.Error},
		"miscount": {retryrmq.BatchErrors{retryrmq.Defer(time.Second)}, "retry", 2, codes.Error},
		"few":      {retryrmq.BatchErrors{nil}, "retry", 2, codes.Error},
	} {
		r := record(t)
		handle := r.Batch(func(context.Context, []*retryrmq.Message) error { return c.err })
		if err := handle(t.Context(), []*retryrmq.Message{{Queue: "orders"}, {Queue: "orders"}}); !errors.Is(err, c.err) && name == "none" {
			t.Errorf("%s: %v", name, err)
		}
		span := r.spans(trace.SpanKindConsumer)[0]
		outcome, failed := "", int64(-1)
		for _, attribute := range span.Attributes {
			switch attribute.Key {
			case otelretryrmq.OutcomeKey:
				outcome = attribute.Value.AsString()
			case otelretryrmq.FailedKey:
				failed = attribute.Value.AsInt64()
			}
		}
		if outcome != c.outcome || failed != c.failed || span.Status.Code != c.status {
			t.Errorf("%s: %q, %d failed, %v", name, outcome, failed, span.Status)
		}
	}
}

// As the consumer counts it.
func TestABatchWhoseHandlerSortedItHasFailed(t *testing.T) {
	r := record(t)
	handle := r.Batch(func(_ context.Context, messages []*retryrmq.Message) error {
		slices.Reverse(messages)
		return retryrmq.BatchErrors{nil, errors.New("no answer")}
	})
	_ = handle(t.Context(), []*retryrmq.Message{{Queue: "orders"}, {Queue: "orders"}})
	if span := r.spans(trace.SpanKindConsumer)[0]; !slices.Contains(span.Attributes, otelretryrmq.FailedKey.Int(2)) ||
		!slices.Contains(span.Attributes, attribute.String("error.type", "BatchAnswerError")) {
		t.Errorf("%+v", span.Attributes)
	}
}
