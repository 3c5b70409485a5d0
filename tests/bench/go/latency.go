package main

import (
	"context"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// How long one message is under way, from a publisher in a process of its own to the handler, at 100 messages a second.

const perSecond = 100

// Begins when somebody consumes, and keeps to the clock.
func publisher(url, queue string, count int) {
	connection := must(amqp091.Dial(url))
	channel := must(connection.Channel())
	for must(channel.QueueDeclarePassive(queue, true, false, false, false, nil)).Consumers == 0 {
		time.Sleep(20 * time.Millisecond)
	}
	began := time.Now()
	for n := range count {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / perSecond)))
		body := fmt.Appendf(nil, "%-256s", fmt.Sprintf("%d ", monotonic()))
		check(channel.Publish("", queue, false, false, amqp091.Publishing{Body: body, DeliveryMode: amqp091.Persistent}))
	}
	check(connection.Close())
}

func amqp091Latency(url, queue string, count int) {
	channel := connected(url)
	l := newLateness(count)
	for delivery := range deliveries(channel, queue, prefetch) {
		l.one(delivery.Body)
		check(delivery.Ack(false))
	}
}

func retryrmqLatency(url, queue string, count int) {
	ctx := context.Background()
	conn := must(retryrmq.Dial(ctx, url))
	l := newLateness(count)
	check(conn.Consume(ctx, queue, func(_ context.Context, m *retryrmq.Message) error {
		l.one(m.Body)
		return nil
	}, retryrmq.DLX(), retryrmq.Prefetch(prefetch)))
}
