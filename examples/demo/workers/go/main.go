// One of the demo's workers: an order fails at its first attempt, and wherever it failed last.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, err := retryrmq.Dial(ctx, os.Getenv("RETRYRMQ_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = conn.Consume(ctx, os.Args[1], func(_ context.Context, m *retryrmq.Message) error {
		if m.Attempt == 1 || strings.HasPrefix(m.LastError, "go:") {
			fmt.Println(m.MessageID, m.Attempt, "failed")
			return errors.New("go: not here")
		}
		fmt.Println(m.MessageID, m.Attempt, "handled")
		return nil
	},
		retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(500*time.Millisecond).Retries(20)),
		retryrmq.Prefetch(1), retryrmq.Concurrency(1), retryrmq.OnReady(func() { fmt.Println("ready") }))
	if err != nil {
		log.Fatal(err)
	}
}
