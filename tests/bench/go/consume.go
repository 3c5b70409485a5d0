package main

import (
	"context"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Consume and acknowledge a full queue with a handler that does nothing, as each client's own documentation does it.

// All are measured from when they are connected.

func connected(url string) *amqp091.Channel { return must(must(amqp091.Dial(url)).Channel()) }

func deliveries(channel *amqp091.Channel, queue string, outstanding int) <-chan amqp091.Delivery {
	check(channel.Qos(outstanding, 0, false))
	return must(channel.Consume(queue, "", false, false, false, false, nil))
}

func amqp091Each(url, queue string, count int) {
	channel := connected(url)
	m := newMeter(count)
	for delivery := range deliveries(channel, queue, prefetch) {
		check(delivery.Ack(false))
		m.one()
	}
}

// One acknowledgement for every sixteen deliveries: the limit of what this client can do.
func amqp091Multiple(url, queue string, count int) {
	channel := connected(url)
	m := newMeter(count)
	n := 0
	for delivery := range deliveries(channel, queue, prefetch) {
		if n++; n%16 == 0 || n == count {
			check(delivery.Ack(true))
		}
		m.one()
	}
}

func watermillSubscriber(url string) *amqp.Subscriber {
	config := amqp.NewDurableQueueConfig(url)
	config.Consume.Qos.PrefetchCount = prefetch
	config.Queue.GenerateName = func(topic string) string { return topic }
	config.TopologyBuilder = existing{}
	config.Marshaler = amqp.DefaultMarshaler{MessageUUIDHeaderKey: "uuid"}
	return must(amqp.NewSubscriber(config, watermill.NopLogger{}))
}

func watermillConsume(url, queue string, count int) {
	subscriber := watermillSubscriber(url)
	m := newMeter(count)
	router := must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	router.AddNoPublisherHandler("bench", queue, subscriber, func(*message.Message) error {
		m.one()
		return nil
	})
	check(router.Run(context.Background()))
}

func retryrmqConsume(url, queue string, count int) {
	singles(url, queue, count, retryrmq.Prefetch(prefetch))
}

// As many messages in hand as 16 batches need.
const batchPrefetch = 1600

func retryrmqSingles(url, queue string, count int) {
	singles(url, queue, count, retryrmq.Prefetch(batchPrefetch))
}

func singles(url, queue string, count int, options ...retryrmq.Option) {
	ctx := context.Background()
	conn := must(retryrmq.Dial(ctx, url))
	m := newMeter(count)
	check(conn.Consume(ctx, queue, func(context.Context, *retryrmq.Message) error {
		m.one()
		return nil
	}, append(options, retryrmq.DLX())...))
}

// With a hundred messages for each call of the handler.
func retryrmqBatches(url, queue string, count int) {
	ctx := context.Background()
	conn := must(retryrmq.Dial(ctx, url))
	m := newMeter(count)
	check(conn.ConsumeBatches(ctx, queue, func(_ context.Context, messages []*retryrmq.Message) error {
		for range messages {
			m.one()
		}
		return nil
	}, retryrmq.DLX(), retryrmq.Batch(100), retryrmq.Prefetch(batchPrefetch)))
}
