package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// The consumer of a soak: prints the number of each message that it has handled.
func soak(url, queue string) {
	// It fails on purpose.
	retryrmq.SetLogger(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	conn := must(retryrmq.Dial(ctx, url))
	check(conn.Consume(ctx, queue, func(_ context.Context, m *retryrmq.Message) error {
		number, err := strconv.Atoi(string(m.Body))
		if err != nil {
			return err
		}
		if number%997 == 0 || (number%3 == 0 && m.Attempt == 1) {
			return fmt.Errorf("%d does not work", number)
		}
		_, err = fmt.Println(number)
		return err
	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(200*time.Millisecond).Retries(5))))
	check(conn.Close())
}
