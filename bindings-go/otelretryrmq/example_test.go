package otelretryrmq_test

import (
	"context"
	"log"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/otelretryrmq"
)

func Example() {
	ctx := context.Background()
	// Without a propagator, no context travels in messages. Providers are those that the program sets, too.
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))

	telemetry := otelretryrmq.New()
	conn, err := retryrmq.Dial(ctx, "amqp://localhost", retryrmq.UseAll(telemetry.Consume), retryrmq.UsePublish(telemetry.Publish))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
}
