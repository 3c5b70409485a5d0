// Consumes `mail` with amqp091-go alone, and rejects at random.
package main

import (
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	connection, err := amqp.Dial(os.Getenv("RETRYRMQ_URL"))
	must(err)
	channel, err := connection.Channel()
	must(err)
	must(channel.Qos(10, 0, false))
	deliveries, err := channel.Consume("mail", "", false, false, false, false, nil)
	must(err)
	over := make(chan os.Signal, 1)
	signal.Notify(over, syscall.SIGINT, syscall.SIGTERM)
	for {
		select {
		case <-over:
			must(connection.Close())
			return
		case delivery, open := <-deliveries:
			if !open {
				log.Fatal("the broker has closed the channel")
			}
			count, _ := delivery.Headers["x-retry-count"].(int64)
			verdict := "done"
			if rand.Float64() < 0.4 {
				must(delivery.Ack(false))
			} else {
				verdict = "rejected"
				must(delivery.Reject(false))
			}
			fmt.Printf("%-12s attempt %d  %s\n", delivery.MessageId, count+1, verdict)
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
