// Publishes: publish QUEUE BODY… It ends when the broker has confirmed.
package main

import (
	"context"
	"log"
	"os"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: publish QUEUE BODY…")
	}
	ctx := context.Background()
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for _, body := range os.Args[2:] {
		if err := conn.Publish(ctx, retryrmq.Publishing{RoutingKey: os.Args[1], Body: []byte(body)}); err != nil {
			log.Fatal(err)
		}
	}
}
