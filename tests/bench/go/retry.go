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

// Each message fails once or more often, and waits each time.

var errNotYet = errors.New("not yet")

// As it is written by hand: a copy to a queue with a time to live, confirmed one by one, then the acknowledgement.
func amqp091Retry(url, queue string, load load) {
	consuming, channel := connected(url), connected(url)
	check(channel.Confirm(false))
	for delivery := range deliveries(consuming, queue, load.outstanding()) {
		failed, _ := delivery.Headers["x-retries"].(int64)
		if !load.fails(int(failed)) {
			check(delivery.Ack(false))
			load.done()
			continue
		}
		confirmation := must(channel.PublishWithDeferredConfirm("", load.place(queue, int(failed)), true, false, amqp091.Publishing{
			Body: delivery.Body, DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{"x-retries": failed + 1},
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
			return errNotYet
		}
		delete(seen, msg)
		m.one()
		return nil
	})
	check(router.Run(context.Background()))
}

func retryrmqLoop(url, queue string, load load) { retryrmqRetry(url, queue, load) }

func retryrmqRetry(url, queue string, load load, options ...retryrmq.Option) {
	retryrmq.SetLogger(slog.New(slog.DiscardHandler))
	ctx := context.Background()
	conn := must(retryrmq.Dial(ctx, url))
	options = append(options, retryrmq.DLX(), retryrmq.Prefetch(load.outstanding()), retryrmq.Retry(load.policy()))
	check(conn.Consume(ctx, queue, func(_ context.Context, msg *retryrmq.Message) error {
		if load.fails(int(msg.Attempt) - 1) {
			return errNotYet
		}
		load.done()
		return nil
	}, options...))
}

// What is there already.
type existing struct{}

func (existing) BuildTopology(*streadway.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}
func (existing) ExchangeDeclare(*streadway.Channel, string, amqp.Config) error { return nil }
