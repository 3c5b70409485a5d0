package retryrmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

type order struct{ Total float64 }

func ship(context.Context, order) error { return nil }

var errUnknownCustomer = errors.New("unknown customer")

func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once

	conn, err := retryrmq.Dial(ctx, "amqp://localhost")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	err = conn.Consume(ctx, "orders", func(ctx context.Context, m *retryrmq.Message) error {
		var o order
		if err := json.Unmarshal(m.Body, &o); err != nil {
			return retryrmq.Permanent(err) // parked now
		}
		return ship(ctx, o) // an error has the message retried
	}, retryrmq.DLX())
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleDial() {
	ctx := context.Background()
	// Three hosts, a password in a file that somebody else keeps fresh, and a broker that may come up after this program.
	conn, err := retryrmq.Dial(ctx, "amqp://shop@one,two,three/orders?passwordfile=/run/secrets/rabbitmq", retryrmq.Wait())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
}

type token struct {
	Text string
	End  time.Time
}

func fetch(context.Context) (token, error) { return token{}, nil }

func ExampleWithCredentials() {
	ctx := context.Background()
	conn, err := retryrmq.Dial(ctx, "amqp://one,two,three/orders",
		retryrmq.WithCredentials(func(ctx context.Context) (retryrmq.Login, error) {
			token, err := fetch(ctx)
			if err != nil {
				return retryrmq.Login{}, err
			}
			return retryrmq.Login{User: "shop", Password: token.Text, ExpiresIn: time.Until(token.End)}, nil
		}))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
}

func ExampleWorkQueue() {
	ctx := context.Background()
	conn, err := retryrmq.Dial(ctx, "amqp://localhost")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = conn.Consume(ctx, "orders", func(ctx context.Context, m *retryrmq.Message) error { return ship(ctx, order{}) },
		retryrmq.DLX(), retryrmq.WorkQueue(retryrmq.Table{"x-max-priority": 10})) // exactly these arguments
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleConn_Publish() {
	ctx := context.Background()
	conn, err := retryrmq.Dial(ctx, "amqp://localhost")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders", Body: []byte(`{"Total": 9}`), MessageID: "order-7"})
	if errors.Is(err, retryrmq.ErrUnroutable) {
		log.Print("there is no queue orders yet")
	}
}

func ExampleConn_Parked() {
	ctx := context.Background()
	conn, err := retryrmq.Dial(ctx, "amqp://localhost")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	for parked, err := range conn.Parked(ctx, "orders") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(parked.Message.MessageID, parked.Reason, parked.Error)
		if parked.Reason == retryrmq.ReasonExhausted {
			if err := parked.Replay(ctx); err != nil {
				log.Fatal(err)
			}
		}
	}
}

func ExampleExponential() {
	policy := retryrmq.Exponential(time.Second, time.Minute).Retries(6)
	fmt.Println(policy)
	fmt.Println(policy.Delays())
	// Output:
	// exponential(1s, factor=4, max=1m, retries=6)
	// [1s 4s 16s 1m0s 1m0s 1m0s]
}

func ExampleFatal() {
	simulation, err := retryrmq.NewSimulation("orders", func(context.Context, *retryrmq.Message) error {
		return fmt.Errorf("order 7: %w", errUnknownCustomer)
	}, retryrmq.DLX(), retryrmq.Fatal(func(err error) bool { return errors.Is(err, errUnknownCustomer) }))
	if err != nil {
		log.Fatal(err)
	}
	defer simulation.Close()
	if err := simulation.Publish(retryrmq.Publishing{}); err != nil {
		log.Fatal(err)
	}
	step, _, err := simulation.Step(context.Background())
	fmt.Println(step.Became, step.Reason, err)
	// Output: parked fatal <nil>
}

func ExampleAfter() {
	errBusy := errors.New("busy")
	handle := func(ctx context.Context, m *retryrmq.Message) error {
		if err := ship(ctx, order{}); errors.Is(err, errBusy) {
			return retryrmq.After(err, 90*time.Second) // this once, whatever the policy says
		} else if err != nil {
			return err
		}
		return nil
	}
	fmt.Println(handle(context.Background(), &retryrmq.Message{}))
	// Output: <nil>
}
