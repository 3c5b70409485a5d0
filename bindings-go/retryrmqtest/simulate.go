// Package retryrmqtest tests without a broker. [Simulate] runs a handler with its real policy, rules, limits and headers, on a virtual clock.
// [FakeClient] keeps what is published, for tests of endpoints.
//
//	result, err := retryrmqtest.Simulate(t.Context(), "orders", handle,
//		[]retryrmq.Publishing{{Body: []byte("not json")}}, retryrmq.DLX())
//	// result.Parked()[0].Reason == "exhausted", result.Elapsed == 341*time.Second
package retryrmqtest

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// End is how a message ended.
type End struct {
	// Index is the index of the message; 0 is the first.
	Index int
	// Became is acked, parked, dropped or rejected.
	Became string
	// At is when its last attempt began, on the virtual clock.
	At time.Duration
	// Reason is why it was parked or dropped.
	Reason string
	// Message is the parked message, with its record; nil if it was not parked.
	Message *retryrmq.Message
}

// Result is what happened: every attempt in order, and how each message ended.
type Result struct {
	// Attempts are all calls of the handler.
	Attempts []retryrmq.Step
	// Ends are in the order of the messages.
	Ends []End
	// Elapsed is how long all of it took, on the virtual clock.
	Elapsed time.Duration
}

// Acked returns the messages that were handled.
func (r *Result) Acked() []End { return r.ended(retryrmq.BecameAcked) }

// Parked returns the messages that were parked.
func (r *Result) Parked() []End { return r.ended(retryrmq.BecameParked) }

// AttemptsOf returns the attempts at the message with this index.
func (r *Result) AttemptsOf(index int) (attempts []retryrmq.Step) {
	for _, attempt := range r.Attempts {
		if attempt.Index == index {
			attempts = append(attempts, attempt)
		}
	}
	return attempts
}

func (r *Result) ended(became string) (ends []End) {
	for _, end := range r.Ends {
		if end.Became == became {
			ends = append(ends, end)
		}
	}
	return ends
}

// The most attempts: a handler that defers its messages again and again would never end.
const mostAttempts = 100_000

// Simulate runs handler on messages, one at a time, until every message has ended. The options are those of retryrmq.Conn.Consume, and so are the
// errors for options that cannot work.
//
// Waiting takes no time: the clock jumps to the next arrival. Only the broker is simulated: whatever the handler does is real, and so is the
// handler timeout. Functions of retryrmq.OnEvent and OnReady are not called, and the channel of retryrmq.Events stays empty. The handler runs on
// the caller's goroutine, so runtime.Goexit or t.FailNow in it ends that. When ctx ends, the simulation ends with the error of ctx.
func Simulate(ctx context.Context, queue string, handler retryrmq.Handler, messages []retryrmq.Publishing,
	options ...retryrmq.Option) (*Result, error) {
	simulation, err := retryrmq.NewSimulation(queue, handler, options...)
	if err != nil {
		return nil, err
	}
	return run(ctx, queue, simulation, messages)
}

// Runs a simulation on messages to its end, and closes it.
func run(ctx context.Context, queue string, simulation *retryrmq.Simulation, messages []retryrmq.Publishing) (*Result, error) {
	defer simulation.Close()
	for _, message := range messages {
		if err := simulation.Publish(message); err != nil {
			return nil, err
		}
	}
	result := &Result{}
	for {
		step, ok, err := simulation.Step(ctx)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		result.Attempts = append(result.Attempts, step)
		if step.Became != retryrmq.BecameRetried && step.Became != retryrmq.BecameDeferred {
			result.Ends = append(result.Ends, End{step.Index, step.Became, step.At, step.Reason, step.Parked})
		}
		if len(result.Attempts) > mostAttempts {
			return nil, fmt.Errorf("the simulation of %q does not end: %d attempts were made", queue, mostAttempts)
		}
	}
	sort.SliceStable(result.Ends, func(i, j int) bool { return result.Ends[i].Index < result.Ends[j].Index })
	result.Elapsed = simulation.Elapsed()
	return result, nil
}
