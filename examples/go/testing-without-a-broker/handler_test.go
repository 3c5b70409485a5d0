package orders

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

func simulate(t *testing.T, body string) *retryrmqtest.Result {
	t.Helper()
	result, err := retryrmqtest.Simulate(t.Context(), "orders", Handle, []retryrmq.Publishing{{Body: []byte(body)}}, Options...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestAnOrderIsParkedAfterThreeMinutes(t *testing.T) {
	result := simulate(t, `{"item": "chair"}`)
	if len(result.Attempts) != 4 || result.Elapsed != 3*time.Minute || result.Parked()[0].Reason != "exhausted" {
		t.Errorf("%d attempts in %v: %+v", len(result.Attempts), result.Elapsed, result.Ends)
	}
}

func TestAnInvalidOrderIsParkedAtOnce(t *testing.T) {
	result := simulate(t, "chair")
	if parked := result.Parked(); len(parked) != 1 || parked[0].Reason != "fatal" || result.Elapsed != 0 {
		t.Errorf("%+v", result.Ends)
	}
}

func TestAnOrderIsShippedWhenTheWarehouseIsBack(t *testing.T) {
	before := Ship
	defer func() { Ship = before }()
	calls := 0
	Ship = func(context.Context, string) error {
		if calls++; calls < 3 {
			return errors.New("closed")
		}
		return nil
	}
	if result := simulate(t, `{"item": "chair"}`); len(result.Acked()) != 1 || result.Elapsed != 2*time.Minute {
		t.Errorf("%+v after %v", result.Ends, result.Elapsed)
	}
}
