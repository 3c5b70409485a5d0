package orders

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

func simulate(ctx context.Context, body string) (*retryrmqtest.Result, error) {
	return retryrmqtest.Simulate(ctx, "orders", Handle, []retryrmq.Publishing{{Body: []byte(body)}}, retryrmq.DLX())
}

func ExampleHandle() {
	if _, err := simulate(context.Background(), `{"item": "chair", "count": 2}`); err != nil {
		log.Fatal(err)
	}
	// Output: 2 × chair, at attempt 1
}

func TestWhatIsNoOrderIsParkedAtOnce(t *testing.T) {
	for body, why := range map[string]string{
		`{"item": "chair"}`:               "ValidationError: count: must be at least 1",
		`{"item": "chair", "count": "2"}`: "UnmarshalTypeError: json: cannot unmarshal string into Go struct field Order.count of type int",
		`chair`:                           "SyntaxError: invalid character 'c' looking for beginning of value at byte 1",
	} {
		result, err := simulate(t.Context(), body)
		if err != nil || len(result.Parked()) != 1 || result.Elapsed != 0 {
			t.Fatalf("%s: %+v, %v", body, result, err)
		}
		parked := result.Parked()[0]
		record := parked.Message.Headers()
		if said := fmt.Sprintf("%s: %s", record["x-retry-error-type"], record["x-retry-error"]); parked.Reason != "undecodable" || said != why {
			t.Errorf("%s: %s, %s", body, parked.Reason, said)
		}
	}
}
