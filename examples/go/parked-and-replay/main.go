// A bug parks messages; an operator looks at them, the bug is mended, and they are replayed.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const queue = "example.parked"

type order struct {
	Price    float64
	Discount *float64
}

func price(o order, mended bool) float64 {
	if o.Discount == nil && mended {
		return o.Price
	}
	return o.Price - *o.Discount // a panic where there is none
}

// Handles until count orders have been parked or are done.
func consume(conn *retryrmq.Conn, mended bool, count int, orders map[string]string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ends, ended := make(chan struct{}, 10), make(chan error, 1)
	go func() {
		ended <- conn.Consume(ctx, queue, func(_ context.Context, m *retryrmq.Message) error {
			var o order
			if err := json.Unmarshal(m.Body, &o); err != nil {
				return retryrmq.Permanent(err)
			}
			fmt.Printf("%s costs %g\n", m.MessageID, price(o, mended))
			ends <- struct{}{}
			return nil
		}, retryrmq.DLX(), retryrmq.Retry(retryrmq.List(200*time.Millisecond)), retryrmq.OnEvent(func(event retryrmq.Event) {
			if event.Name == retryrmq.EventParked {
				ends <- struct{}{}
			}
		}))
	}()
	for id, body := range orders {
		publish(conn, retryrmq.Publishing{RoutingKey: queue, MessageID: id, Body: []byte(body)})
	}
	for range count {
		<-ends
	}
	stop()
	return <-ended
}

func run(ctx context.Context) error {
	conn, err := retryrmq.Dial(ctx, cmp.Or(os.Getenv("RETRYRMQ_URL"), "amqp://localhost"))
	if err != nil {
		return err
	}
	defer conn.Close()
	orders := map[string]string{
		"order-1": `{"price": 10, "discount": 1}`, "order-2": `{"price": 20}`, "order-3": `{"price": 0.5}`,
	}
	if err := consume(conn, false, len(orders), orders); err != nil {
		return err
	}
	for it, err := range conn.Parked(ctx, queue) {
		if err != nil {
			return err
		}
		fmt.Printf("parked %s: %s after %d attempts, %s\n", it.Message.MessageID, it.Error, it.Attempts, it.Message.Body)
		for line := range strings.Lines(it.Stack) {
			if strings.HasPrefix(line, "main.price") {
				fmt.Println("  in price")
			}
		}
		var o order
		if err := json.Unmarshal(it.Message.Body, &o); err != nil {
			return err
		}
		if o.Price < 1 {
			err = it.Drop(ctx) // not worth it
		} else {
			err = it.Replay(ctx) // back to the tail of its queue, counted from the start
		}
		if err != nil {
			return err
		}
	}
	return consume(conn, true, 1, nil)
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// Publishes as soon as the consumer has made the queue.
func publish(conn *retryrmq.Conn, message retryrmq.Publishing) {
	for {
		err := conn.Publish(context.Background(), message)
		if err == nil {
			return
		}
		if !errors.Is(err, retryrmq.ErrUnroutable) {
			log.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
