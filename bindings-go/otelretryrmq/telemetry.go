// Package otelretryrmq traces and measures the attempts and publishes of retryrmq with OpenTelemetry.
//
//	telemetry := otelretryrmq.New()
//	conn, err := retryrmq.Dial(ctx, url, retryrmq.UseAll(telemetry.Consume), retryrmq.UsePublish(telemetry.Publish))
//
// Each attempt is a span "process QUEUE" of the kind CONSUMER, and each publish a span "publish DESTINATION" of the kind PRODUCER. The context of a
// publish travels in the headers of its message. The copies of a retry keep them, so all attempts are children of the publish.
//
// The global propagator of OpenTelemetry reads and writes the headers. It does nothing until the program sets one:
//
//	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
//
// Names and attributes are those of OpenTelemetry's semantic conventions for messaging and RabbitMQ, whose version is in the schema URL of the tracer.
// These conventions are still in development, so the names may change in a minor version.
package otelretryrmq

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/semconv/v1.39.0/messagingconv"
	"go.opentelemetry.io/otel/trace"
)

// ScopeName is the name of the tracer and of the meter.
const ScopeName = "github.com/retryrmq/retryrmq/bindings-go/otelretryrmq"

// Telemetry has the middleware. One is enough for a program; many goroutines may use it at the same time.
type Telemetry struct {
	tracer      trace.Tracer
	propagators propagation.TextMapPropagator

	processed messagingconv.ProcessDuration
	consumed  messagingconv.ClientConsumedMessages
	operated  messagingconv.ClientOperationDuration
	sent      messagingconv.ClientSentMessages
}

// Option is an option of [New].
type Option func(*config)

type config struct {
	tracers     trace.TracerProvider
	meters      metric.MeterProvider
	propagators propagation.TextMapPropagator
}

// WithTracerProvider sets the tracer provider, instead of the global one.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(c *config) {
		if provider != nil {
			c.tracers = provider
		}
	}
}

// WithMeterProvider sets the meter provider, instead of the global one.
func WithMeterProvider(provider metric.MeterProvider) Option {
	return func(c *config) {
		if provider != nil {
			c.meters = provider
		}
	}
}

// WithPropagators sets what reads and writes the headers, instead of the global propagator.
func WithPropagators(propagators propagation.TextMapPropagator) Option {
	return func(c *config) {
		if propagators != nil {
			c.propagators = propagators
		}
	}
}

// Bounds that the conventions recommend, in seconds.
var buckets = metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

// New returns the middleware. Global providers that are set later are used from then on.
func New(options ...Option) *Telemetry {
	c := config{otel.GetTracerProvider(), otel.GetMeterProvider(), otel.GetTextMapPropagator()}
	for _, option := range options {
		option(&c)
	}
	meter := c.meters.Meter(ScopeName, metric.WithSchemaURL(semconv.SchemaURL))
	t := &Telemetry{
		tracer:      c.tracers.Tracer(ScopeName, trace.WithSchemaURL(semconv.SchemaURL)),
		propagators: c.propagators,
	}
	// An instrument that cannot be made measures nothing.
	var err error
	if t.processed, err = messagingconv.NewProcessDuration(meter, buckets); err != nil {
		otel.Handle(err)
	}
	if t.consumed, err = messagingconv.NewClientConsumedMessages(meter); err != nil {
		otel.Handle(err)
	}
	if t.operated, err = messagingconv.NewClientOperationDuration(meter, buckets); err != nil {
		otel.Handle(err)
	}
	if t.sent, err = messagingconv.NewClientSentMessages(meter); err != nil {
		otel.Handle(err)
	}
	return t
}
