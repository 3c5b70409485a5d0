package otelretryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/otelretryrmq"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

// A virtual host of its own on the newest broker.
func vhost(t *testing.T) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(os.Getenv("RETRYRMQ_TEST_BROKERS")), "\n")
	parts := strings.Split(lines[len(lines)-1], "|")
	if len(parts) < 3 {
		t.Skip("no broker: run it through tests/broker/with-brokers")
	}
	address, err := url.Parse(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("otel-%d-%d", os.Getpid(), time.Now().UnixNano())
	manage := func(method, path, body string) {
		request, err := http.NewRequest(method, parts[2]+"/api/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		password, _ := address.User.Password()
		request.SetBasicAuth(address.User.Username(), password)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		// A busy broker says 500 of a deletion that it goes on with.
		isGoing := method == http.MethodDelete && response.StatusCode == http.StatusInternalServerError
		if _ = response.Body.Close(); response.StatusCode >= 300 && !isGoing {
			t.Fatalf("%s %s: %s", method, path, response.Status)
		}
	}
	manage(http.MethodPut, "vhosts/"+name, "{}")
	t.Cleanup(func() { manage(http.MethodDelete, "vhosts/"+name, "") })
	manage(http.MethodPut, "permissions/"+name+"/"+address.User.Username(), `{"configure": ".*", "write": ".*", "read": ".*"}`)
	address.Path, address.RawPath = "/"+name, ""
	return address.String()
}

// Waits for a span of a kind.
func (r *recorded) await(t *testing.T, kind trace.SpanKind) tracetest.SpanStub {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		if spans := r.spans(kind); len(spans) > 0 {
			return spans[0]
		}
		if time.Now().After(deadline) {
			t.Error("no span has ended")
			return tracetest.SpanStub{}
		}
	}
}

// The SDK, with what it has recorded.
type recorded struct {
	*otelretryrmq.Telemetry
	exporter *tracetest.InMemoryExporter
	tracers  *sdktrace.TracerProvider
	reader   *metric.ManualReader
}

func record(t *testing.T) *recorded {
	r := &recorded{exporter: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	r.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.exporter))
	meters := metric.NewMeterProvider(metric.WithReader(r.reader))
	t.Cleanup(func() {
		_ = r.tracers.Shutdown(context.Background())
		_ = meters.Shutdown(context.Background())
	})
	r.Telemetry = otelretryrmq.New(otelretryrmq.WithTracerProvider(r.tracers), otelretryrmq.WithMeterProvider(meters),
		otelretryrmq.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})))
	return r
}

// The spans of a kind that have ended, in order.
func (r *recorded) spans(kind trace.SpanKind) []tracetest.SpanStub {
	return slices.DeleteFunc(r.exporter.GetSpans(), func(span tracetest.SpanStub) bool { return span.SpanKind != kind })
}

// The points of all metrics, as "name{attributes} count".
func (r *recorded) points(t *testing.T) (points []string) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	point := func(m metricdata.Metrics, set attribute.Set, count any) {
		points = append(points, fmt.Sprintf("%s[%s]{%s} %v", m.Name, m.Unit, set.Encoded(attribute.DefaultEncoder()), count))
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch of := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range of.DataPoints {
					point(m, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range of.DataPoints {
					point(m, p.Attributes, p.Count)
				}
			}
		}
	}
	slices.Sort(points)
	return points
}

func has(t *testing.T, span tracetest.SpanStub, want map[string]any) {
	t.Helper()
	got := map[string]any{}
	for _, attribute := range span.Attributes {
		got[string(attribute.Key)] = attribute.Value.AsInterface()
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s has %v, not %v", span.Name, got, want)
	}
}

func (r *recorded) simulate(t *testing.T, handler retryrmq.Handler, message retryrmq.Publishing, options ...retryrmq.Option) []tracetest.SpanStub {
	t.Helper()
	ctx, main := r.tracers.Tracer("test").Start(t.Context(), "main") // no parent of messages
	defer main.End()
	_, err := retryrmqtest.Simulate(ctx, "orders", handler, []retryrmq.Publishing{message}, append(options, retryrmq.DLX(),
		retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)), retryrmq.Use(r.Consume))...)
	if err != nil {
		t.Fatal(err)
	}
	r.await(t, trace.SpanKindConsumer) // at its deadline a span ends on a goroutine of its own
	return r.spans(trace.SpanKindConsumer)
}

func TestAttemptsAreChildrenOfTheirPublish(t *testing.T) {
	address := vhost(t)
	r := record(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	conn, err := retryrmq.Dial(ctx, address, retryrmq.UseAll(r.Consume), retryrmq.UsePublish(r.Publish))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const queue = "orders"
	consuming, main := r.tracers.Tracer("test").Start(ctx, "main")
	err = conn.Consume(consuming, queue, func(ctx context.Context, m *retryrmq.Message) error {
		_, inner := r.tracers.Tracer("test").Start(ctx, "ship")
		defer inner.End()
		if m.Attempt == 1 {
			return fmt.Errorf("no answer: %w", context.DeadlineExceeded)
		}
		stop()
		return nil
	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10*time.Millisecond)), retryrmq.OnReady(func() { // the queue exists
		for _, key := range []string{queue, "nobody"} {
			// Not with ctx: the handler may end that before both are published.
			_ = conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: key, Body: []byte("chair"), MessageID: "4711", CorrelationID: "c-1"})
		}
	}))
	main.End()
	if err != nil {
		t.Fatal(err)
	}
	published, attempts, inner := r.spans(trace.SpanKindProducer), r.spans(trace.SpanKindConsumer), r.spans(trace.SpanKindInternal)
	if len(published) != 2 || len(attempts) != 2 || len(inner) != 3 {
		t.Fatalf("%d publishes, %d attempts, %d others", len(published), len(attempts), len(inner))
	}
	common := map[string]any{"messaging.system": "rabbitmq", "messaging.destination.name": queue, "messaging.rabbitmq.destination.routing_key": queue,
		"messaging.message.id": "4711", "messaging.message.conversation_id": "c-1", "messaging.message.body.size": int64(5)}
	with := func(more map[string]any) map[string]any {
		all := maps.Clone(common)
		maps.Copy(all, more)
		return all
	}
	sent, refused := published[0], published[1]
	has(t, sent, with(map[string]any{"messaging.operation.name": "publish", "messaging.operation.type": "send"}))
	has(t, refused, with(map[string]any{"messaging.operation.name": "publish", "messaging.operation.type": "send", "error.type": "unroutable",
		"messaging.destination.name": "nobody", "messaging.rabbitmq.destination.routing_key": "nobody"}))
	has(t, attempts[0], with(map[string]any{"messaging.operation.name": "process", "messaging.operation.type": "process",
		"error.type": "deadlineExceededError", "retryrmq.attempt": int64(1), "retryrmq.outcome": "retry"}))
	has(t, attempts[1], with(map[string]any{"messaging.operation.name": "process", "messaging.operation.type": "process",
		"retryrmq.attempt": int64(2), "retryrmq.outcome": "ack"}))
	for i, attempt := range attempts {
		if attempt.Name != "process "+queue || attempt.SpanContext.TraceID() != sent.SpanContext.TraceID() ||
			attempt.Parent.SpanID() != sent.SpanContext.SpanID() || inner[i].Parent.SpanID() != attempt.SpanContext.SpanID() {
			t.Errorf("attempt %d is %+v", i+1, attempt)
		}
	}
	if sent.Name != "publish "+queue || sent.Status.Code != codes.Unset || refused.Status.Code != codes.Error || refused.Name != "publish nobody" {
		t.Errorf("%+v, %+v", sent, refused)
	}
	if s := attempts[0]; s.Status.Code != codes.Error || len(s.Events) != 1 || s.Events[0].Name != "exception" {
		t.Errorf("%+v", s)
	}
	if s := attempts[1]; s.Status.Code != codes.Unset || len(s.Events) != 0 {
		t.Errorf("%+v", s)
	}
	process := "messaging.destination.name=" + queue + ",messaging.operation.name=process,messaging.system=rabbitmq"
	send := ",messaging.operation.name=publish,messaging.operation.type=send,messaging.system=rabbitmq"
	publish := ",messaging.operation.name=publish,messaging.system=rabbitmq"
	want := []string{
		"messaging.client.consumed.messages[{message}]{" + process + "} 2",
		"messaging.process.duration[s]{" + process + "} 1",
		"messaging.process.duration[s]{error.type=deadlineExceededError," + process + "} 1",
		"messaging.client.sent.messages[{message}]{messaging.destination.name=" + queue + publish + "} 1",
		"messaging.client.sent.messages[{message}]{error.type=unroutable,messaging.destination.name=nobody" + publish + "} 1",
		"messaging.client.operation.duration[s]{messaging.destination.name=" + queue + send + "} 1",
		"messaging.client.operation.duration[s]{error.type=unroutable,messaging.destination.name=nobody" + send + "} 1",
	}
	slices.Sort(want)
	if got := r.points(t); !slices.Equal(got, want) {
		t.Errorf("the metrics are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

type broken struct{}

func (*broken) Error() string { panic("a nil pointer") }

func TestHowAnAttemptEndsIsInItsSpan(t *testing.T) {
	var none *broken
	for name, c := range map[string]struct {
		handler       retryrmq.Handler
		outcome, kind string
		status        codes.Code
	}{
		"ack":         {func(context.Context, *retryrmq.Message) error { return nil }, "ack", "", codes.Unset},
		"retry":       {func(context.Context, *retryrmq.Message) error { return errors.New("no answer") }, "retry", "Error", codes.Error},
		"park":        {func(context.Context, *retryrmq.Message) error { return retryrmq.Park("ask") }, "park", "Park", codes.Error},
		"fatal":       {func(context.Context, *retryrmq.Message) error { return retryrmq.Permanent(errors.New("no")) }, "fatal", "Error", codes.Error},
		"undecodable": {retryrmq.Handle(func(context.Context, int, *retryrmq.Message) error { return nil }), "undecodable", "SyntaxError", codes.Error},
		"panic":       {func(context.Context, *retryrmq.Message) error { panic("no such item") }, "retry", "panic", codes.Error},
		"broken":      {func(context.Context, *retryrmq.Message) error { return none }, "retry", "broken", codes.Error},
		"defer": {func(_ context.Context, m *retryrmq.Message) error {
			if m.Headers()["x-retry-deferrals"] == nil {
				return retryrmq.Defer(time.Second)
			}
			return nil
		}, "defer", "", codes.Unset},
		"late": {func(ctx context.Context, _ *retryrmq.Message) error {
			<-ctx.Done()
			return nil
		}, "retry", "HandlerTimeout", codes.Error},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if name == "late" {
				limit = 20 * time.Millisecond
			}
			span := record(t).simulate(t, c.handler, retryrmq.Publishing{Body: []byte("{")}, retryrmq.HandlerTimeout(limit))[0]
			want := map[string]any{"messaging.system": "rabbitmq", "messaging.operation.name": "process", "messaging.operation.type": "process",
				"messaging.destination.name": "orders", "messaging.rabbitmq.destination.routing_key": "orders", "messaging.message.body.size": int64(1),
				"retryrmq.attempt": int64(1), "retryrmq.outcome": c.outcome}
			if c.kind != "" {
				want["error.type"] = c.kind
			}
			has(t, span, want)
			if span.Status.Code != c.status || (c.status == codes.Error && name != "broken" && len(span.Events) != 1) {
				t.Errorf("%+v, %+v", span.Status, span.Events)
			}
		})
	}
}

// The record of the message is what it is without tracing.
func TestAPanicPassesThrough(t *testing.T) {
	result, err := retryrmqtest.Simulate(t.Context(), "orders", func(context.Context, *retryrmq.Message) error { panic("no such item") },
		[]retryrmq.Publishing{{}}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)), retryrmq.Use(record(t).Consume))
	if err != nil {
		t.Fatal(err)
	}
	record := result.Parked()[0].Message.Headers()
	stack, _ := record["x-retry-error-stack"].(string)
	if record["x-retry-error"] != "panic: no such item" || !strings.Contains(stack, "TestAPanicPassesThrough.func1") {
		t.Errorf("%v", record)
	}
}

func TestAnEndOfTheGoroutineEndsTheSpan(t *testing.T) {
	r := record(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Consume(func(context.Context, *retryrmq.Message) error {
			runtime.Goexit()
			return nil
		})(context.Background(), &retryrmq.Message{Queue: "orders", Attempt: 1})
	}()
	<-done
	if spans := r.spans(trace.SpanKindConsumer); len(spans) != 1 || spans[0].Status.Code != codes.Error {
		t.Errorf("%+v", spans)
	}
}

// Headers are written by strangers.
func TestHeadersThatCannotBeReadCountAsNone(t *testing.T) {
	const id = "0af7651916cd43dd8448eb211c80319c"
	for name, c := range map[string]struct {
		traceparent any
		parent      bool
	}{
		"valid":    {"00-" + id + "-b7ad6b7169203331-01", true},
		"bytes":    {[]byte("00-" + id + "-b7ad6b7169203331-01"), true},
		"none":     {nil, false},
		"nonsense": {"00-nonsense", false},
		"zeros":    {"00-00000000000000000000000000000000-0000000000000000-01", false},
		"empty":    {"", false},
		"number":   {7, false},
		"table":    {retryrmq.Table{"traceparent": id}, false},
	} {
		t.Run(name, func(t *testing.T) {
			message := retryrmq.Publishing{Headers: retryrmq.Table{"traceparent": c.traceparent, "tracestate": 7, "baggage": "%%%,=,;"}}
			spans := record(t).simulate(t, func(context.Context, *retryrmq.Message) error { return nil }, message)
			if len(spans) != 1 {
				t.Fatalf("%d spans", len(spans))
			}
			if parent := spans[0].Parent; parent.IsValid() != c.parent || (c.parent && parent.TraceID().String() != id) {
				t.Errorf("the parent is %+v", parent)
			}
		})
	}
}

func TestDestinationsAreNamedAsTheConventionsSay(t *testing.T) {
	for _, c := range []struct {
		exchange, key          string
		span, publish, process string
	}{
		{"shop", "eu.orders", "publish shop", "shop:eu.orders", "shop:eu.orders:orders"},
		{"shop", "orders", "publish shop", "shop:orders", "shop:orders"},
		{"shop", "", "publish shop", "shop", "shop:orders"},
		{"", "orders", "publish orders", "orders", "orders"},
		{"", "amq.gen-x7", "publish (anonymous)", "amq.gen-x7", "amq.gen-x7:orders"},
		{"", "", "publish amq.default", "amq.default", "orders"},
	} {
		r := record(t)
		message := retryrmq.Publishing{Exchange: c.exchange, RoutingKey: c.key}
		if err := r.Publish(func(context.Context, retryrmq.Publishing) error { return nil })(t.Context(), message); err != nil {
			t.Error(err)
		}
		handle := r.Consume(func(context.Context, *retryrmq.Message) error { return nil })
		if err := handle(t.Context(), &retryrmq.Message{Exchange: c.exchange, RoutingKey: c.key, Queue: "orders"}); err != nil {
			t.Error(err)
		}
		name := func(span tracetest.SpanStub) string {
			for _, attribute := range span.Attributes {
				if attribute.Key == "messaging.destination.name" {
					return attribute.Value.AsString()
				}
			}
			return ""
		}
		sent, processed := r.spans(trace.SpanKindProducer)[0], r.spans(trace.SpanKindConsumer)[0]
		if sent.Name != c.span || name(sent) != c.publish || name(processed) != c.process || processed.Name != "process orders" {
			t.Errorf("%q to %q: %s of %s, %s of %s", c.exchange, c.key, sent.Name, name(sent), processed.Name, name(processed))
		}
	}
}

func TestAPublishThatIsCutShortSaysSo(t *testing.T) {
	r := record(t)
	cut := r.Publish(func(ctx context.Context, message retryrmq.Publishing) error {
		if message.Headers["traceparent"] == nil {
			t.Errorf("%v", message.Headers)
		}
		return ctx.Err()
	})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := cut(ctx, retryrmq.Publishing{RoutingKey: "orders"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if points := r.points(t); len(points) != 2 || !strings.Contains(points[0], "error.type=canceled") {
		t.Errorf("%v", points)
	}
}

// A handler that ignores its context may never return.
func TestTheSpanEndsAtTheHandlerTimeout(t *testing.T) {
	r := record(t)
	spans := r.simulate(t, func(context.Context, *retryrmq.Message) error {
		r.await(t, trace.SpanKindConsumer)
		return nil
	}, retryrmq.Publishing{}, retryrmq.HandlerTimeout(time.Millisecond))
	if len(spans) != 1 || spans[0].Status.Description != "the handler took longer than 1ms" {
		t.Errorf("%+v", spans)
	}
}

func TestAMessageThatTheDrainLeavesIsRequeued(t *testing.T) {
	address := vhost(t)
	r := record(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	conn, err := retryrmq.Dial(ctx, address, retryrmq.UseAll(r.Consume))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	handled := make(chan struct{})
	err = conn.Consume(ctx, "orders", func(context.Context, *retryrmq.Message) error {
		defer close(handled)
		stop()
		r.await(t, trace.SpanKindConsumer)
		return errors.New("too late")
	}, retryrmq.DLX(), retryrmq.DrainTimeout(10*time.Millisecond), retryrmq.OnReady(func() {
		// Not with ctx: the handler ends that, perhaps before this is confirmed.
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders"}); err != nil {
			t.Error(err)
		}
	}))
	if !errors.Is(err, retryrmq.ErrTimeout) {
		t.Errorf("Consume: %v", err)
	}
	<-handled
	spans := r.spans(trace.SpanKindConsumer)
	if len(spans) != 1 || spans[0].Status.Code != codes.Unset || !slices.Contains(spans[0].Attributes, otelretryrmq.OutcomeKey.String("requeue")) {
		t.Errorf("%+v", spans)
	}
}
