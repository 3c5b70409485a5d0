// Package orders has a handler that gets the bodies of messages as a Go type, and its tests.
package orders

import (
	"context"
	"errors"
	"fmt"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// ANCHOR: handler

// Order is the body of a message, as JSON.
type Order struct {
	Item  string `json:"item"`
	Count int    `json:"count"`
}

// Validate is called with every order that was read.
func (o Order) Validate() error {
	if o.Count < 1 {
		return errors.New("count: must be at least 1")
	}
	return nil
}

// Handle ships an order. Messages that hold none are parked at once, as undecodable.
var Handle = retryrmq.Handle(func(ctx context.Context, order Order, m *retryrmq.Message) error {
	fmt.Printf("%d × %s, at attempt %d\n", order.Count, order.Item, m.Attempt)
	return nil
})

// ANCHOR_END: handler
