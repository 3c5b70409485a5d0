// Handles one message of a queue, which fails once and comes back: consumer QUEUE
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = conn.Consume(ctx, os.Args[1], func(_ context.Context, m *retryrmq.Message) error {
		fmt.Printf("attempt %d of %s\n", m.Attempt, m.Body)
		if m.Attempt == 1 {
			return errors.New("the database is restarting")
		}
		stop()
		return nil
	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(100*time.Millisecond).Retries(3)))
	if err != nil {
		log.Fatal(err)
	}
}
