package native

/*
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// Line is a log line.
type Line struct {
	Module string
	Level  int
	Text   string
	Fields []string
}

// The one goroutine that fetches the notifications of the native half, for as long as somebody needs it.
type notificationDispatcher struct {
	// Held by whoever begins or ends the goroutine, so that there is one at most.
	lifetime  sync.Mutex
	mu        sync.Mutex
	users     int
	ended     chan struct{}
	next      uint64
	pending   map[uint64]chan struct{}
	listeners map[uint64]func(row []byte)
	providers map[uint64]func(request uint64, over bool)
}

var dispatcher = notificationDispatcher{
	pending:   map[uint64]chan struct{}{},
	listeners: map[uint64]func(row []byte){},
	providers: map[uint64]func(uint64, bool){},
}

// The reader of log lines and of the number of events that were dropped; set before the first AcquireDispatcher.
var (
	OnLine   = func(Line) {}
	OnMissed = func(uint64) {}
)

// How long a thread waits for notifications at once.
const fetchSlice = 60_000

// AcquireDispatcher keeps notifications coming until ReleaseDispatcher.
func AcquireDispatcher() {
	dispatcher.lifetime.Lock()
	defer dispatcher.lifetime.Unlock()
	dispatcher.mu.Lock()
	defer dispatcher.mu.Unlock()
	dispatcher.users++
	if dispatcher.users == 1 {
		dispatcher.ended = make(chan struct{})
		go dispatcher.run(dispatcher.ended)
	}
}

// ReleaseDispatcher lets go; the last one waits for the end of the goroutine, after which nothing is told.
func ReleaseDispatcher() (last bool) {
	dispatcher.lifetime.Lock()
	defer dispatcher.lifetime.Unlock()
	dispatcher.mu.Lock()
	dispatcher.users--
	last, ended := dispatcher.users == 0, dispatcher.ended
	dispatcher.mu.Unlock()
	if last {
		C.rr_wake_fetcher()
		<-ended
	}
	return last
}

func (n *notificationDispatcher) run(ended chan struct{}) {
	defer close(ended)
	for over := false; !over; {
		n.fetch()
		n.mu.Lock()
		over = n.users == 0
		n.mu.Unlock()
	}
}

func (n *notificationDispatcher) fetch() {
	fetched, err := bytesOf(C.rr_fetch_notifications(fetchSlice))
	if err != nil {
		return
	}
	r := NewReader(fetched)
	finished := make([]uint64, r.Count())
	for i := range finished {
		finished[i] = r.Uint64()
	}
	for range r.Count() {
		n.deliver(r.Uint64(), r.Bytes())
	}
	for range r.Count() {
		line := Line{Module: r.String(), Level: int(int8(r.Uint8())), Text: r.String()}
		line.Fields = make([]string, r.Count())
		for i := range line.Fields {
			line.Fields[i] = r.String()
		}
		OnLine(line)
	}
	if missed := r.Uint64(); missed > 0 {
		OnMissed(missed)
	}
	for range r.Count() {
		provider, request, over := r.Uint64(), r.Uint64(), r.Bool()
		n.mu.Lock()
		ask := n.providers[provider]
		n.mu.Unlock()
		if ask != nil {
			ask(request, over)
		} else if !over {
			AnswerCredentials(request, nil, "it belongs to a connection that was closed")
		}
	}
	// Last, so that whoever waited finds everything told that happened before.
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ticket := range finished {
		if done := n.pending[ticket]; done != nil {
			delete(n.pending, ticket)
			close(done)
		}
	}
}

// Tells an event, if its listener still listens. RemoveListener waits for the end of that.
func (n *notificationDispatcher) deliver(listener uint64, row []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if deliver := n.listeners[listener]; deliver != nil {
		deliver(row)
	}
}

// AddListener has events passed to deliver, as JSON that it must not keep. It must not wait for anything, nor call this package; the number is for Client.Subscribe.
func AddListener(deliver func(row []byte)) uint64 {
	dispatcher.mu.Lock()
	defer dispatcher.mu.Unlock()
	dispatcher.next++
	dispatcher.listeners[dispatcher.next] = deliver
	return dispatcher.next
}

// RemoveListener ends that: afterwards nothing is told.
func RemoveListener(listener uint64) {
	dispatcher.mu.Lock()
	defer dispatcher.mu.Unlock()
	delete(dispatcher.listeners, listener)
}

// LogLines says the least level of the log lines that are wanted.
func LogLines(least slog.Level) { C.rr_log_lines(C.int8_t(least)) }

// Operation is something that takes time.
type Operation struct {
	object
	done chan struct{}
}

// Begins an operation; somebody must hold the dispatcher until it is done.
func begin(start func(ticket uint64) C.rr_answer) (*Operation, error) {
	done := make(chan struct{})
	dispatcher.mu.Lock()
	dispatcher.next++
	ticket := dispatcher.next
	dispatcher.pending[ticket] = done
	dispatcher.mu.Unlock()
	handle, err := valueOf(start(ticket))
	if err != nil {
		dispatcher.mu.Lock()
		delete(dispatcher.pending, ticket)
		dispatcher.mu.Unlock()
		return nil, err
	}
	op := &Operation{done: done}
	op.own(handle, func(handle uint64) { C.rr_free_operation(C.uint64_t(handle)) })
	return op, nil
}

// Done is closed at its end.
func (op *Operation) Done() <-chan struct{} { return op.done }

// ContextError is why ctx has ended: its error, and its cause as well where somebody gave one.
func ContextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// Waits for the end. When ctx ends first, the error is ctx's. The operation is then freed, which gives it up if it leaves nothing
// behind when it is cut short; otherwise it comes to its end all the same.
func (op *Operation) wait(ctx context.Context) error {
	select {
	case <-op.done:
		return nil
	default:
	}
	select {
	case <-op.done:
		return nil
	case <-ctx.Done():
		return ContextError(ctx)
	}
}

// Wait waits for the end of an operation that gives nothing, and frees it.
func (op *Operation) Wait(ctx context.Context) error {
	defer op.Free()
	if err := op.wait(ctx); err != nil {
		return err
	}
	_, err := valueOf(C.rr_operation_nothing(C.uint64_t(op.handle)))
	return err
}

// Client waits for the client that was connected.
func (op *Operation) Client(ctx context.Context) (*Client, error) {
	defer op.Free()
	if err := op.wait(ctx); err != nil {
		return nil, err
	}
	handle, err := valueOf(C.rr_operation_client(C.uint64_t(op.handle)))
	if err != nil {
		return nil, err
	}
	client := &Client{}
	client.own(handle, func(handle uint64) { C.rr_free_client(C.uint64_t(handle)) })
	return client, nil
}

// Subscription waits for the subscription that was made.
func (op *Operation) Subscription(ctx context.Context) (*Subscription, error) {
	defer op.Free()
	if err := op.wait(ctx); err != nil {
		return nil, err
	}
	handle, err := valueOf(C.rr_operation_subscription(C.uint64_t(op.handle)))
	if err != nil {
		return nil, err
	}
	subscription := &Subscription{}
	subscription.own(handle, func(handle uint64) { C.rr_free_subscription(C.uint64_t(handle)) })
	return subscription, nil
}

// Walk waits for the walk that was begun.
func (op *Operation) Walk(ctx context.Context) (*Walk, error) {
	defer op.Free()
	if err := op.wait(ctx); err != nil {
		return nil, err
	}
	handle, err := valueOf(C.rr_operation_walk(C.uint64_t(op.handle)))
	if err != nil {
		return nil, err
	}
	walk := &Walk{}
	walk.own(handle, func(handle uint64) { C.rr_free_walk(C.uint64_t(handle)) })
	return walk, nil
}

// Record waits for the next record of a walk; nil at the end.
func (op *Operation) Record(ctx context.Context) ([]byte, error) {
	defer op.Free()
	if err := op.wait(ctx); err != nil {
		return nil, err
	}
	return bytesOf(C.rr_operation_record(C.uint64_t(op.handle)))
}
