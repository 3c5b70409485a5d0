// A bug parks messages. An operator browses them, the bug is fixed, and they are replayed.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const queue = "example.replay"

type order struct {
	Price    float64
	Discount *float64
}

func price(o order, fixed bool) float64 {
	if o.Discount == nil && fixed {
		return o.Price
	}
	return o.Price - *o.Discount // a panic where there is none
}

// Handles until count orders have been parked or are done.
func consume(conn *retryrmq.Conn, fixed bool, count int64, orders map[string]string) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var ends atomic.Int64
	end := func() {
		if ends.Add(1) == count {
			stop()
		}
	}
	return conn.Consume(ctx, queue, func(_ context.Context, m *retryrmq.Message) error {
		var o order
		if err := json.Unmarshal(m.Body, &o); err != nil {
			return retryrmq.Permanent(err)
		}
		fmt.Printf("%s costs %g\n", m.MessageID, price(o, fixed))
		end()
		return nil
	},
		retryrmq.DLX(), retryrmq.Retry(retryrmq.List(200*time.Millisecond)),
		retryrmq.OnEvent(func(event retryrmq.Event) {
			if event.Name == retryrmq.EventParked {
				end()
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
}

func run(ctx context.Context) error {
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	orders := map[string]string{
		"order-1": `{"price": 10, "discount": 1}`, "order-2": `{"price": 20}`, "order-3": `{"price": 0.5}`,
	}
	if err := consume(conn, false, int64(len(orders)), orders); err != nil {
		return err
	}
	for it, err := range conn.Parked(ctx, queue) {
		if err != nil {
			return err
		}
		fmt.Printf("parked %s: %s after attempt %d, %s\n", it.Message.MessageID, it.Error, it.Attempts, it.Message.Body)
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
