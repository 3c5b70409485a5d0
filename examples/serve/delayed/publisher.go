// Publishes with delays, with amqp091-go alone: publisher EXCHANGE plugin|serve [DELAY_MS…]
package main

import (
	"context"
	"log"
	"os"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	exchange, by, delays := os.Args[1], os.Args[2], os.Args[3:]
	connection, err := amqp.Dial(os.Getenv("RETRYRMQ_URL"))
	must(err)
	channel, err := connection.Channel()
	must(err)
	if by == "plugin" {
		arguments := amqp.Table{"x-delayed-type": "topic"}
		must(channel.ExchangeDeclare(exchange, "x-delayed-message", true, false, false, false, arguments))
	} else {
		must(channel.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
	}
	must(channel.Confirm(false))
	for _, delay := range delays {
		ms, err := strconv.ParseInt(delay, 10, 64)
		must(err)
		confirm, err := channel.PublishWithDeferredConfirm(exchange, "order."+delay, false, false, amqp.Publishing{
			MessageId:    "go-" + delay,
			DeliveryMode: amqp.Persistent,
			Headers:      amqp.Table{"x-delay": ms},
			Body:         []byte(delay),
		})
		must(err)
		_, err = confirm.WaitContext(context.Background())
		must(err)
	}
	must(connection.Close())
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
