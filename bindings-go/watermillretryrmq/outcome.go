package watermillretryrmq

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// A message on its way through Watermill, which passes on an Ack or a Nack, but no error.
type attempt struct {
	message *retryrmq.Message
	mu      sync.Mutex
	inside  int           // how many calls of Outcome run
	outside chan struct{} // closed when none does; nil before the first
	ended   bool
	err     error
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

func (a *attempt) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inside++; a.inside == 1 {
		a.outside = make(chan struct{})
	}
}

func (a *attempt) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended, a.err = true, err
	if a.inside--; a.inside == 0 {
		close(a.outside)
	}
}

// Waits for the error of a handler that nacks its message before it returns, but no longer than ctx lives.
func (a *attempt) wait(ctx context.Context) {
	a.mu.Lock()
	outside := a.outside
	a.mu.Unlock()
	if outside == nil {
		return
	}
	select {
	case <-outside:
	case <-ctx.Done():
	}
}

var (
	errNacked = errors.New("the message was nacked; the middleware watermillretryrmq.Outcome would tell why")
	errLater  = errors.New("nacked, but the handler succeeded: it called Nack, what it returned was not published, or another middleware failed")
	errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, or t.FailNow in a test), or panicked with nil")
)

// Why the message was nacked.
func (a *attempt) why() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return a.err
	case a.ended:
		return errLater
	}
	return errNacked
}

// Outcome is a middleware for the router that passes the error of a handler to the subscriber: its text and type are in the record of the message,
// and [retryrmq.After], [retryrmq.Permanent], [retryrmq.Defer], [retryrmq.Park] and the rules decide by it. Add it before all others. A panic
// passes through. A handler that ends its goroutine has failed.
//
// Without it every Nack is a failed attempt that says nothing more.
func Outcome(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		a := attemptOf(msg.Context())
		if a == nil { // of another subscriber
			return next(msg)
		}
		a.begin()
		returned := false
		defer func() {
			value := recover()
			switch {
			case returned:
				a.end(err)
			case value != nil:
				a.end(panicOf(value))
				panic(value)
			default: // it ends its goroutine, and the router would never hear of it; or panic(nil), where GODEBUG has panicnil=1
				produced, err = nil, panicOf(errGoexit)
				a.end(err)
				msg.Nack()
			}
		}()
		produced, err = next(msg)
		returned = true
		return produced, err
	}
}

// MessageOf returns the message of retryrmq that a handler's message was made of: with its queue, last error, history and all headers. It is nil
// for a message of another subscriber.
func MessageOf(msg *message.Message) *retryrmq.Message {
	if a := attemptOf(msg.Context()); a != nil {
		return a.message
	}
	return nil
}
