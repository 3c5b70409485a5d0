package retryrmq

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// A function that never returns is not called again and again for ever.
func TestOfAFunctionThatHangsSomeCallsRunAtATime(t *testing.T) {
	var begun, told atomic.Int64
	release := make(chan struct{})
	a := newAsker(context.Background(), &dialling{asks: true, ask: func(ctx context.Context) (Login, error) {
		begun.Add(1)
		<-ctx.Done()
		told.Add(1)
		<-release
		return Login{}, nil
	}})
	until := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(120 * time.Second); !holds(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within 120 s: %s", what)
			}
		}
	}
	running := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.running
	}
	// Numbers that the native half never gives.
	question := uint64(1 << 60)
	for range 3 * mostAsked {
		question++
		a.asked(question, false)
		a.asked(question, true)
	}
	until("they hang", func() bool { return begun.Load() == mostAsked && told.Load() == mostAsked })
	close(release)
	until("they have returned", func() bool { return running() == 0 })
	a.asked(question+1, false)
	until("it is asked again", func() bool { return begun.Load() == mostAsked+1 })
	a.end()
	until("the end ends the question", func() bool { return running() == 0 })
	a.asked(question+2, false)
	if running() != 0 || begun.Load() != mostAsked+1 {
		t.Error("it is asked after the end")
	}
}
