package retryrmq

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// An attempt that has failed, or that may fail without its handler, by its deadline: at one message, or at those of a batch.
//
// It counts as running until no user code runs for it any more: the handler, methods of its error, log handlers. So none of these holds up the
// end for longer than the drain timeout.
type attempt struct {
	w        *workers
	messages []*Message
	one      [1]*Message // the memory of messages, if it is one
	given    []*Message  // to the handler of a batch, which may change this slice
	// Guarded by the lock of the workers: goroutines that run user code for it,
	inside int
	// whether one of them settles it (the handler's, or that of the deadline),
	begun bool
	// and whether it is settled.
	settled bool
	// Settles it if methods of its error take too long.
	last *time.Timer
}

func (w *workers) newAttempt(m *Message) *attempt {
	a := &attempt{w: w, one: [1]*Message{m}, inside: 1}
	a.messages = a.one[:]
	return a
}

// One call of the handler, and its end.
func (w *workers) attempt(m *Message) {
	if w.limit > 0 {
		w.attemptWithin(m)
		return
	}
	returned := false
	defer func() {
		if !returned { // the handler has ended this goroutine
			w.failed(m, goexit())
		}
	}()
	err := call(w.handlerContext, w.handler, m)
	returned = true
	if err != nil {
		w.failed(m, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.count(m)
	w.acknowledge(m)
}

// The caller holds the lock, which this may release for a while.
func (w *workers) acknowledge(m *Message) {
	w.acks.Add(m.token)
	if w.acks.Len() >= mostAcks {
		w.flush()
	}
}

func (w *workers) failed(m *Message, err error) {
	a := w.newAttempt(m)
	a.begun = true
	defer a.leave()
	a.failed(err)
}

// Like attempt, with a deadline: the handler's end or the deadline, whichever is first, ends the attempt.
func (w *workers) attemptWithin(m *Message) {
	a := w.newAttempt(m)
	defer a.leave()
	ctx, cancel, limit := withHandlerDeadline(w.handlerContext, w.late)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == error(w.late) {
			a.onDeadline(w.late)
		}
	})
	defer stop()
	returned := false
	defer func() {
		if !returned {
			a.returned(limit.result(goexit()))
		}
	}()
	err := call(ctx, w.handler, m)
	returned = true
	a.returned(limit.result(err))
}

// The handler has returned. This has no effect if the deadline came first.
func (a *attempt) returned(err error) {
	w := a.w
	w.mu.Lock()
	if a.begun {
		w.mu.Unlock()
		return
	}
	a.begun = true
	if err == nil {
		a.markSettled()
		for _, m := range a.messages {
			w.acks.Add(m.token)
		}
		if w.acks.Len() >= mostAcks && w.batches == nil { // after a batch, its goroutine passes them on
			w.flush()
		}
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	a.failed(err)
}

// How long methods of an error may take that was returned at the deadline; or as long as the handler timeout, if that is longer.
const classifyTimeout = 10 * time.Second

// The deadline has come. A handler that still runs has failed. Methods of its error, or of the one it has just returned, are user code as well.
// They get a limited time; then the message is settled without them.
func (a *attempt) onDeadline(late *timeoutError) {
	w := a.w
	w.mu.Lock()
	if a.settled {
		w.mu.Unlock()
		return
	}
	a.last = time.AfterFunc(max(w.limit, classifyTimeout), func() { a.giveUp(late) })
	if a.begun {
		w.mu.Unlock()
		return
	}
	a.begun = true
	a.enter()
	w.mu.Unlock()
	defer w.all.Done()
	defer a.leave()
	a.failed(late)
}

// Methods of its error take too long.
func (a *attempt) giveUp(late *timeoutError) {
	w := a.w
	w.mu.Lock()
	if a.settled {
		w.mu.Unlock()
		return
	}
	a.enter()
	w.mu.Unlock()
	defer w.all.Done()
	defer a.leave()
	a.settle(nil, &native.End{What: native.Retry, Error: late.Error(), ErrorType: late.ErrorType()}, nil)
}

// Another goroutine is about to run user code for an attempt that is not settled. One already does, because none leaves before it is settled. The
// caller holds the lock.
func (a *attempt) enter() {
	a.w.all.Add(1)
	a.inside++
}

// The goroutine runs no more user code for it.
func (a *attempt) leave() {
	w := a.w
	w.mu.Lock()
	defer w.mu.Unlock()
	a.inside--
	if a.inside == 0 {
		w.running--
		w.settled--
		w.count(a.messages[0])
	}
}

// Ends an attempt that failed.
func (a *attempt) failed(err error) {
	var deferredLines []logLine
	classifier := a.w.classifier
	classifier.deferredLines = &deferredLines
	var ends []*native.End
	end := &native.End{What: native.Retry, Error: errGoexit.Error(), ErrorType: defaultErrorType}
	// Deferred, because an error's method or a function of Fatal may end this goroutine.
	defer func() { a.settle(ends, end, deferredLines) }()
	if a.w.batches != nil {
		ends = classifier.classifyBatch(err, a.messages, a.given)
		return
	}
	end = classifier.classify(err, a.messages[0])
}

// The caller holds the lock, and no user code runs before the messages are settled.
func (a *attempt) markSettled() {
	a.settled = true
	a.w.settled++
	a.w.batchExtra -= len(a.messages) - 1
}

// Settles it, once, each message by its own end, which is nil for one that succeeded, or without these all by the same. Then it logs these
// ends, after the lines that wait already: a log handler is user code, which may take long, and no message waits for it.
func (a *attempt) settle(each []*native.End, all *native.End, deferredLines []logLine) {
	log := a.w.classifier.log
	defer func() {
		for _, l := range deferredLines {
			log.log(l.level, l.message, l.attributes...)
		}
	}()
	a.w.mu.Lock()
	if a.settled {
		a.w.mu.Unlock()
		return
	}
	a.markSettled()
	if a.last != nil {
		a.last.Stop()
	}
	a.w.mu.Unlock()
	if each == nil {
		each = slices.Repeat([]*native.End{all}, len(a.messages))
	}
	var succeeded native.Tokens
	for i, m := range a.messages {
		if each[i] == nil {
			succeeded.Add(m.token)
		}
	}
	a.w.pass(succeeded)
	for i, m := range a.messages {
		if each[i] != nil {
			deferredLines = append(deferredLines, settle(m, each[i], a.w.subscription.Settle)...)
		}
	}
	for i, m := range a.messages {
		if end := each[i]; end != nil && end.What != native.Defer {
			deferredLines = append(deferredLines, failureLine(m, end))
		}
	}
}

// The native half logs what failed and what follows; only Go has the chain of causes and the stack of a panic.
func failureLine(m *Message, end *native.End) logLine {
	attributes := about(m, "error", short(end.Error))
	if end.ErrorType != "" {
		attributes = append(attributes, "error_type", short(end.ErrorType))
	}
	if end.Stack != "" {
		attributes = append(attributes, "stack", cut(end.Stack, mostStack))
	}
	return logLine{slog.LevelDebug, "retryrmq: a handler failed", attributes}
}
