// A router of Watermill whose messages are retried, and parked in the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/watermillretryrmq"
)

const topic = "example.watermill"

// The orders that are done with.
var settled = make(chan string, 2)

func bill(msg *message.Message) error {
	attempt := msg.Metadata.Get(watermillretryrmq.AttemptKey)
	fmt.Printf("attempt %s of %s for %s\n", attempt, msg.UUID, msg.Metadata.Get("customer"))
	switch {
	case msg.Metadata.Get("customer") == "nobody":
		return retryrmq.Permanent(errors.New("no such customer")) // no retry can fix it: parked at once
	case attempt != "3":
		return errors.New("the database is restarting") // retried
	}
	settled <- msg.UUID
	return nil // acknowledged
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	logger := watermill.NopLogger{} // or watermill.NewSlogLogger(slog.Default())
	subscriber, err := watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{
		Options: []retryrmq.Option{
			retryrmq.DLX(),
			retryrmq.Retry(retryrmq.Fixed(200 * time.Millisecond).Retries(5)),
			retryrmq.OnEvent(func(event retryrmq.Event) {
				if event.Name == retryrmq.EventParked {
					fmt.Printf("%s is parked, %s: %s\n", event.MessageID, event.Reason, event.Error)
					settled <- event.MessageID
				}
			}),
		},
	}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		log.Fatal(err)
	}
	router.AddMiddleware(watermillretryrmq.Outcome) // first of all: the handler's error decides
	router.AddConsumerHandler("billing", topic, subscriber, bill)

	go func() {
		<-router.Running() // the queue exists
		publish(conn)
		<-settled
		<-settled
		stop()
	}()
	if err := router.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func publish(conn *retryrmq.Conn) {
	publisher, err := watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{})
	if err != nil {
		log.Fatal(err)
	}
	for id, customer := range map[string]string{"order-1": "acme", "order-2": "nobody"} {
		msg := message.NewMessage(id, []byte("{}"))
		msg.Metadata.Set("customer", customer)
		if err := publisher.Publish(topic, msg); err != nil {
			log.Fatal(err)
		}
	}
}
