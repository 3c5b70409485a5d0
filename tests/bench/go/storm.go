package main

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Two that publish no copies.

// The client only rejects; the queue keeps the message for a second and counts.
func amqp091Delayed(url, queue string, load load) {
	failed := func(delivery amqp091.Delivery) int {
		count, _ := delivery.Headers["x-delivery-count"].(int64)
		return int(count)
	}
	withoutCopies(url, queue, load, failed, func(delivery amqp091.Delivery) error { return delivery.Reject(true) })
}

// Given back at once; how often a message has failed is known to this process alone.
func amqp091Requeue(url, queue string, load load) {
	failures := map[string]int{}
	failed := func(delivery amqp091.Delivery) int {
		failures[delivery.MessageId]++
		return failures[delivery.MessageId] - 1
	}
	withoutCopies(url, queue, load, failed, requeue)
}

// Given back at once, without a count.
func amqp091Uncounted(url, queue string, load load) {
	withoutCopies(url, queue, load, func(amqp091.Delivery) int { return 0 }, requeue)
}

func requeue(delivery amqp091.Delivery) error { return delivery.Nack(false, true) }

func withoutCopies(url, queue string, load load, failed func(amqp091.Delivery) int, giveBack func(amqp091.Delivery) error) {
	for delivery := range deliveries(connected(url), queue, load.outstanding()) {
		if load.fails(failed(delivery)) {
			check(giveBack(delivery))
			continue
		}
		check(delivery.Ack(false))
		load.done()
	}
}

func retryrmqNative(url, queue string, load load) {
	retryrmqRetry(url, queue, load, retryrmq.Strategy(retryrmq.Native))
}

func retryrmqPause(url, queue string, load load) {
	retryrmqRetry(url, queue, load, retryrmq.Pause(0, 0, 0))
}
