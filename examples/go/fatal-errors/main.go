// Errors that a retry cannot fix: the message is parked at once.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const queue = "example.fatal"

// UnknownCustomer is an error of our own: its name is in the record of the parked message.
type UnknownCustomer struct{ Number int }

func (u *UnknownCustomer) Error() string { return fmt.Sprintf("nobody has the number %d", u.Number) }

func handle(_ context.Context, m *retryrmq.Message) error {
	var order struct{ Customer, Total int }
	if err := json.Unmarshal(m.Body, &order); err != nil {
		return retryrmq.Permanent(err) // this error, here
	}
	if order.Customer == 0 {
		return &UnknownCustomer{order.Customer} // this kind of error, wherever it comes from: see Fatal below
	}
	if order.Total < 0 {
		return retryrmq.Park("a negative total: ask the customer")
	}
	return errors.New("the database is restarting") // worth another try
}

func main() {
	orders := map[string]string{
		"garbage":  "not json",
		"unknown":  `{"customer": 0, "total": 5}`,
		"negative": `{"customer": 1, "total": -5}`,
		"unlucky":  `{"customer": 1, "total": 5}`,
	}
	ctx, stop := context.WithCancel(context.Background())
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	parked := 0
	err = conn.Consume(ctx, queue, handle,
		retryrmq.DLX(),
		retryrmq.Retry(retryrmq.Fixed(500*time.Millisecond).Retries(2)),
		retryrmq.Fatal(func(err error) bool { return errors.As(err, new(*UnknownCustomer)) }),
		retryrmq.OnEvent(func(event retryrmq.Event) {
			if event.Name == retryrmq.EventParked {
				fmt.Printf("%s is parked after attempt %d, %s: %s\n", event.MessageID, event.Attempt, event.Reason, event.Error)
				if parked++; parked == len(orders) {
					stop()
				}
			}
		}),
		retryrmq.OnReady(func() { // the queue exists
			for id, body := range orders {
				// Not with ctx, which may end before the last one is confirmed.
				err := conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: queue, MessageID: id, Body: []byte(body)})
				if err != nil {
					log.Fatal(err)
				}
			}
		}))
	if err != nil {
		log.Fatal(err)
	}
	for it, err := range conn.Parked(context.Background(), queue) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("drop %s: %s, attempts: %d\n", it.Message.MessageID, cmp.Or(it.ErrorType, "no type"), it.Attempts)
		if err := it.Drop(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
}
