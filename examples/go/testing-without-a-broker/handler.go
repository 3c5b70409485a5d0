// Package orders has a handler, and tests of it that need no broker: see handler_test.go.
package orders

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Ship is where an order goes; tests put something else here.
var Ship = func(context.Context, string) error { return errors.New("there is no warehouse") }

// Options are those of the consumer, in one place for it and for its tests.
var Options = []retryrmq.Option{
	retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Minute).Retries(3)),
}

// Handle ships an order.
func Handle(ctx context.Context, m *retryrmq.Message) error {
	var order struct{ Item string }
	if err := json.Unmarshal(m.Body, &order); err != nil {
		return retryrmq.Permanent(err)
	}
	return Ship(ctx, order.Item)
}
