package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	streadway "github.com/streadway/amqp"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Every message fails once and waits a second.

var errOnce = errors.New("once")

// As it is written by hand: a copy to a queue with a time to live, confirmed one by one, then the acknowledgement.
func amqp091Retry(url, queue string, count int) {
	consuming, channel := connected(url), connected(url)
	check(channel.Confirm(false))
	m := newMeter(count)
	for delivery := range deliveries(consuming, queue) {
		m.arrived()
		if delivery.Headers["x-retries"] != nil {
			check(delivery.Ack(false))
			m.one()
			continue
		}
		confirmation := must(channel.PublishWithDeferredConfirm("", waiting(queue), true, false, amqp091.Publishing{
			Body: delivery.Body, DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{"x-retries": int64(1)},
		}))
		go func() {
			if confirmation.Wait() {
				check(delivery.Ack(false))
			}
		}()
	}
}

// The middleware waits in the handler, with the message unacknowledged: everything behind it waits, too.
func watermillRetry(url, queue string, count int) {
	subscriber := watermillSubscriber(url)
	m := newMeter(count)
	router := must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	router.AddMiddleware(middleware.Retry{MaxRetries: 3, InitialInterval: time.Second}.Middleware)
	seen := map[*message.Message]bool{}
	router.AddNoPublisherHandler("bench", queue, subscriber, func(msg *message.Message) error {
		m.arrived()
		if !seen[msg] {
			seen[msg] = true
			return errOnce
		}
		delete(seen, msg)
		m.one()
		return nil
	})
	check(router.Run(context.Background()))
}

func retryrmqRetry(url, queue string, count int) {
	retryrmq.SetLogger(slog.New(slog.DiscardHandler))
	ctx := context.Background()
	conn := must(retryrmq.Dial(ctx, url))
	m := newMeter(count)
	check(conn.Consume(ctx, queue, func(_ context.Context, msg *retryrmq.Message) error {
		m.arrived()
		if msg.Attempt == 1 {
			return errOnce
		}
		m.one()
		return nil
	}, retryrmq.DLX(), retryrmq.Prefetch(prefetch), retryrmq.Retry(retryrmq.Fixed(time.Second))))
}

// The queue in which messages wait when it is done by hand.
func waiting(queue string) string { return queue + ".waiting" }

// What is there already.
type existing struct{}

func (existing) BuildTopology(*streadway.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}
func (existing) ExchangeDeclare(*streadway.Channel, string, amqp.Config) error { return nil }
