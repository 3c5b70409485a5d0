// A handler that gets several messages at once, and answers for each.
package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const (
	queue = "example.batches"
	count = 10
)

var stored, ended atomic.Int64

func store(_ context.Context, orders []int) error {
	stored.Add(int64(len(orders)))
	return nil
}

// ANCHOR: handler
func handle(ctx context.Context, messages []*retryrmq.Message) error {
	var orders []int
	errs := make(retryrmq.BatchErrors, len(messages))
	for i, m := range messages {
		order, err := strconv.Atoi(string(m.Body))
		if err != nil {
			errs[i] = retryrmq.Undecodable(err) // this message alone is parked
			continue
		}
		orders = append(orders, order)
	}
	if err := store(ctx, orders); err != nil {
		return err // all are retried
	}
	return errs
}

// ANCHOR_END: handler

func main() {
	ctx, stop := context.WithCancel(context.Background())
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	err = conn.ConsumeBatches(ctx, queue, func(ctx context.Context, messages []*retryrmq.Message) error {
		fmt.Printf("a batch of %d\n", len(messages))
		if ended.Add(int64(len(messages))) >= count {
			stop()
		}
		return handle(ctx, messages)
	}, retryrmq.DLX(), retryrmq.Batch(5), retryrmq.BatchWait(time.Second), retryrmq.Concurrency(1), retryrmq.OnReady(func() { // the queue exists
		for number := range count {
			body := strconv.Itoa(number)
			if number == 3 {
				body = "no number"
			}
			// Not with ctx, which the handler may end before the last one is confirmed.
			if err := conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: queue, Body: []byte(body)}); err != nil {
				log.Fatal(err)
			}
		}
	}))
	if err != nil {
		log.Fatal(err)
	}
	for parked, err := range conn.Parked(context.Background(), queue) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("parked: %s, %s\n", parked.Message.Body, parked.Reason)
		if err := parked.Drop(context.Background()); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("%d orders are stored\n", stored.Load())
}
