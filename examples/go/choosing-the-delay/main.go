// Who says how long a failed message waits: the policy, a rule, or the handler itself.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
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
		return retryrmq.Defer(500 * time.Millisecond) // not an error: no attempt is spent
	}
	return nil
}

func tell(event retryrmq.Event) {
	switch event.Name {
	case retryrmq.EventRetried:
		fmt.Printf("%s waits %v: %s\n", event.MessageID, event.Delay, event.Error)
	case retryrmq.EventDeferred:
		fmt.Printf("%s is put off for %v\n", event.MessageID, event.Delay)
	}
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	conn, err := retryrmq.Dial(ctx, cmp.Or(os.Getenv("RETRYRMQ_URL"), "amqp://localhost"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	var left sync.WaitGroup
	left.Add(4)
	go func() {
		left.Wait()
		stop()
	}()
	started := make(chan error, 1)
	go func() {
		started <- conn.Consume(ctx, queue, func(ctx context.Context, m *retryrmq.Message) error {
			err := handle(ctx, m)
			if err == nil {
				fmt.Printf("%s is done at attempt %d\n", m.MessageID, m.Attempt)
				left.Done()
			}
			return err
		},
			retryrmq.DLX(),
			retryrmq.Retry(retryrmq.Exponential(250*time.Millisecond, time.Minute).Factor(2).Retries(6)),
			retryrmq.Rules(retryrmq.Rule{Error: "TimeoutError", Retry: retryrmq.Fixed(time.Second).Retries(3)}),
			retryrmq.OnEvent(tell))
	}()
	for _, id := range []string{"busy", "early", "flaky", "timeout"} {
		publish(conn, retryrmq.Publishing{RoutingKey: queue, MessageID: id})
	}
	if err := <-started; err != nil {
		log.Fatal(err)
	}
}

// Publishes as soon as the consumer has made the queue.
func publish(conn *retryrmq.Conn, message retryrmq.Publishing) {
	for {
		err := conn.Publish(context.Background(), message)
		if err == nil {
			return
		}
		if !errors.Is(err, retryrmq.ErrUnroutable) {
			log.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
