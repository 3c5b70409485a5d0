// Package watermillretryrmq is a Pub/Sub of Watermill over retryrmq: what a router's handler returns decides whether a message is acknowledged,
// retried or parked.
//
//	subscriber, err := watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: []retryrmq.Option{retryrmq.DLX()}}, logger)
//	router.AddMiddleware(watermillretryrmq.Outcome)
//	router.AddConsumerHandler("billing", "orders", subscriber, handle)
//
// It takes the place of Watermill's middleware Retry and PoisonQueue, and reads and writes the messages of watermill-amqp's DefaultMarshaler.
package watermillretryrmq
