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
	p := newCredentialProvider(context.Background(), &dialOptions{hasCredentials: true, ask: func(ctx context.Context) (Login, error) {
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
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.running
	}
	// Numbers that the native half never gives.
	request := uint64(1 << 60)
	for range 3 * maxCredentialCalls {
		request++
		p.onRequest(request, false)
		p.onRequest(request, true)
	}
	until("they hang", func() bool { return begun.Load() == maxCredentialCalls && told.Load() == maxCredentialCalls })
	close(release)
	until("they have returned", func() bool { return running() == 0 })
	p.onRequest(request+1, false)
	until("it is asked again", func() bool { return begun.Load() == maxCredentialCalls+1 })
	p.end()
	until("the end ends the request", func() bool { return running() == 0 })
	p.onRequest(request+2, false)
	if running() != 0 || begun.Load() != maxCredentialCalls+1 {
		t.Error("it is asked after the end")
	}
}
