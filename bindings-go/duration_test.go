package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

func TestANumberWithoutAUnitIsRefused(t *testing.T) {
	consume := func(options ...retryrmq.Option) error {
		simulation, err := retryrmq.NewSimulation("orders", handled, append(options, retryrmq.DLX())...)
		if err == nil {
			simulation.Close()
		}
		return err
	}
	publish := func(message retryrmq.Publishing) error {
		simulation, err := retryrmq.NewSimulation("orders", handled)
		if err != nil {
			return err
		}
		defer simulation.Close()
		return simulation.Publish(message)
	}
	for what, err := range map[string]error{
		"`fixed`":          retryrmq.Fixed(5).Check(),
		"`linear`":         retryrmq.Linear(5, time.Second).Check(),
		"`step`":           retryrmq.Linear(time.Second, 5).Check(),
		"`list`":           retryrmq.List(time.Second, 5).Check(),
		"`exponential`":    retryrmq.Exponential(1, time.Minute).Check(),
		"`max`":            retryrmq.Exponential(time.Second, 60).Check(),
		"is 600ns":         retryrmq.Policy{}.Max(600).Check(),
		"`max_age`":        retryrmq.Fixed(time.Second).MaxAge(3600).Check(),
		"999.999µs":        consume(retryrmq.Retry(retryrmq.Fixed(time.Millisecond - 1))),
		"is 7ns":           consume(retryrmq.Rules(retryrmq.Rule{Error: "*", Retry: retryrmq.Fixed(7)})),
		"`HandlerTimeout`": consume(retryrmq.HandlerTimeout(30)),
		"`DrainTimeout`":   consume(retryrmq.DrainTimeout(30)),
		"`Pause`":          consume(retryrmq.Pause(0.5, 20, 30)),
		"`Delay`":          publish(retryrmq.Publishing{Delay: 10}),
		"`Expiration`":     publish(retryrmq.Publishing{Expiration: 10}),
	} {
		var ours *retryrmq.Error
		if !errors.As(err, &ours) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "write 5*time.Second") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, share := range []float64{math.NaN(), math.Inf(1)} {
		var ours *retryrmq.Error
		if err := consume(retryrmq.Pause(share, 20, time.Second)); !errors.As(err, &ours) || !strings.Contains(err.Error(), "`Pause`") {
			t.Errorf("%v: %v", share, err)
		}
	}
	// What is said again counts, and nothing at all has no unit.
	for _, err := range []error{
		retryrmq.Exponential(time.Second, 60).Max(time.Minute).Check(),
		consume(retryrmq.DrainTimeout(0)), consume(retryrmq.Rules()), publish(retryrmq.Publishing{Delay: time.Millisecond}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// A handler cannot be told at once: its attempt has failed, and says why.
func TestADelayWithoutAUnitIsNotWaited(t *testing.T) {
	simulate := func(outcome error, options ...retryrmq.Option) retryrmqtest.Result {
		t.Helper()
		result, err := retryrmqtest.Simulate(t.Context(), "orders", func(_ context.Context, m *retryrmq.Message) error {
			if m.Attempt > 1 || m.Headers()["x-retry-deferrals"] != nil {
				return nil
			}
			return outcome
		}, []retryrmq.Publishing{{}}, options...)
		if err != nil {
			t.Fatal(err)
		}
		return *result
	}
	policy := retryrmq.Retry(retryrmq.Fixed(time.Minute))
	for name, outcome := range map[string]error{
		"After": fmt.Errorf("order 7: %w", retryrmq.After(io.EOF, 5)), "Defer": retryrmq.Defer(5),
	} {
		result := simulate(outcome, retryrmq.DLX(), policy)
		if result.Attempts[0].Became != retryrmq.BecameRetried || result.Elapsed != time.Minute {
			t.Errorf("%s: %+v", name, result)
		}
		said := result.Attempts[1].Message.LastError
		if !strings.Contains(said, name+" is 5ns") || !strings.Contains(said, "5*time.Second") {
			t.Errorf("%s: %q", name, said)
		}
	}
	for name, outcome := range map[string]error{
		"After": retryrmq.After(io.EOF, 0), "Defer": retryrmq.Defer(0), "Defer again": retryrmq.Defer(time.Millisecond),
	} {
		if result := simulate(outcome, retryrmq.DLX(), policy); result.Elapsed > time.Second {
			t.Errorf("%s: %+v", name, result)
		}
	}
	// Without DLX a failure could drop the message.
	if result := simulate(retryrmq.Defer(5)); result.Attempts[0].Became != retryrmq.BecameDeferred {
		t.Errorf("%+v", result)
	}
}
