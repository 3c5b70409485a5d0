// A handler that fails twice, and a message that comes back until it succeeds. Ends with Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once

	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	err = conn.Consume(ctx, "orders", func(ctx context.Context, m *retryrmq.Message) error {
		fmt.Printf("attempt %d of order %s\n", m.Attempt, m.Body)
		if m.Attempt < 3 {
			return errors.New("the database is restarting")
		}
		return nil
	}, retryrmq.DLX())
	if err != nil {
		log.Fatal(err)
	}
}
