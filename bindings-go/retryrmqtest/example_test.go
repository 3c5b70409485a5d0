package retryrmqtest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

func ExampleSimulate() {
	result, err := retryrmqtest.Simulate(context.Background(), "orders", func(context.Context, *retryrmq.Message) error {
		return errors.New("the database is restarting")
	}, []retryrmq.Publishing{{Body: []byte("7")}}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Minute).Retries(3)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(result.Attempts), result.Elapsed, result.Parked()[0].Reason)
	// Output: 4 3m0s exhausted
}
