// Package orders has a service that publishes, and tests of it that need no broker: see service_test.go.
package orders

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Routes are the endpoints of the service.
func Routes(conn *retryrmq.Conn) http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the order is too large", http.StatusRequestEntityTooLarge)
			return
		}
		if err := conn.Publish(r.Context(), retryrmq.Publishing{RoutingKey: "orders", Body: body}); err != nil {
			log.Print(err) // not for the client: it names the broker
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	return routes
}

// Ship consumes orders until ctx ends.
func Ship(ctx context.Context, conn *retryrmq.Conn) error {
	return conn.Consume(ctx, "orders", func(ctx context.Context, m *retryrmq.Message) error {
		if m.Attempt == 1 {
			return errors.New("the warehouse does not answer")
		}
		return conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "shipped", Body: m.Body})
	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Minute).Retries(2)))
}
