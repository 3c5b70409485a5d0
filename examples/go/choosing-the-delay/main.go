// Three ways to choose how long a failed message waits: the policy, a rule, or the handler itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const queue = "example.delays"

func handle(_ context.Context, m *retryrmq.Message) error {
	switch {
	case m.MessageID == "flaky" && m.Attempt <= 3:
		return errors.New("the database is restarting") // the policy: 0.25, 0.5 and 1 s
	case m.MessageID == "timeout" && m.Attempt == 1:
		return fmt.Errorf("no answer: %w", context.DeadlineExceeded) // the rule: 1 s
	case m.MessageID == "busy" && m.Attempt == 1:
		return retryrmq.After(errors.New("the partner asks for 1.5 s"), 1500*time.Millisecond)
	case m.MessageID == "early" && m.Headers()["x-retry-deferrals"] == nil:
		return retryrmq.Defer(500 * time.Millisecond) // not an error: uses up no retry
	}
	return nil
}

func tell(event retryrmq.Event) {
	switch event.Name {
	case retryrmq.EventRetried:
		fmt.Printf("%s waits %v: %s\n", event.MessageID, event.Delay, event.Error)
	case retryrmq.EventDeferred:
		fmt.Printf("%s is deferred for %v\n", event.MessageID, event.Delay)
	}
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	conn, err := retryrmq.DialEnv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	left := []string{"busy", "early", "flaky", "timeout"}
	var done atomic.Int64
	err = conn.Consume(ctx, queue, func(ctx context.Context, m *retryrmq.Message) error {
		err := handle(ctx, m)
		if err == nil {
			fmt.Printf("%s is done at attempt %d\n", m.MessageID, m.Attempt)
			if done.Add(1) == int64(len(left)) {
				stop()
			}
		}
		return err
	},
		retryrmq.DLX(),
		retryrmq.Retry(retryrmq.Exponential(250*time.Millisecond, time.Minute).Factor(2).Retries(6)),
		retryrmq.Rules(retryrmq.Rule{Error: "TimeoutError", Retry: retryrmq.Fixed(time.Second).Retries(3)}),
		retryrmq.OnEvent(tell),
		retryrmq.OnReady(func() { // the queue exists
			for _, id := range left {
				// Not with ctx, which the handler may end before the last one is confirmed.
				if err := conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: queue, MessageID: id}); err != nil {
					log.Fatal(err)
				}
			}
		}))
	if err != nil {
		log.Fatal(err)
	}
}
