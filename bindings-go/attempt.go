package retryrmq

import (
	"context"
	"log/slog"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// An attempt that has failed, or that may fail without its handler, by its deadline.
//
// It counts as running until no user code runs for it any more: the handler, methods of its error, log handlers. So none of these holds up the
// end for longer than the drain timeout.
type attempt struct {
	w *workers
	m *Message
	// Guarded by the lock of the workers: goroutines that run user code for it,
	inside int
	// whether one of them settles it (the handler's, or that of the deadline),
	begun bool
	// and whether it is settled.
	settled bool
	// Settles it if methods of its error take too long.
	last *time.Timer
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
	err := call(w.handling, w.handler, m)
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
	a := &attempt{w: w, m: m, inside: 1, begun: true}
	defer a.leave()
	a.failed(err)
}

// Like attempt, with a deadline: the handler's end or the deadline, whichever is first, ends the attempt.
func (w *workers) attemptWithin(m *Message) {
	a := &attempt{w: w, m: m, inside: 1}
	defer a.leave()
	ctx, cancel, limit := newLimit(w.handling, w.limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == errTooLong {
			a.overdue(&tooLong{w.limit})
		}
	})
	defer stop()
	returned := false
	defer func() {
		if !returned {
			a.returned(limit.counts(goexit()))
		}
	}()
	err := call(ctx, w.handler, m)
	returned = true
	a.returned(limit.counts(err))
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
		a.settled = true
		w.settled++
		w.acknowledge(a.m)
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	a.failed(err)
}

// How long methods of an error may take that was returned at the deadline; or as long as the handler timeout, if that is longer.
const longestJudgement = 10 * time.Second

// The deadline has come. A handler that still runs has failed. Methods of its error, or of the one it has just returned, are user code as well.
// They get a limited time; then the message is settled without them.
func (a *attempt) overdue(late *tooLong) {
	w := a.w
	w.mu.Lock()
	if a.settled {
		w.mu.Unlock()
		return
	}
	a.last = time.AfterFunc(max(w.limit, longestJudgement), func() { a.giveUp(late) })
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
func (a *attempt) giveUp(late *tooLong) {
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
	a.settle(&native.Ending{What: native.Retry, Error: late.Error(), ErrorType: late.ErrorType()})
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
		w.count(a.m)
	}
}

// Ends an attempt that failed.
func (a *attempt) failed(err error) {
	ending := &native.Ending{What: native.Retry, Error: errGoexit.Error(), ErrorType: plainType}
	// Deferred, because an error's method or a function of Fatal may end this goroutine.
	defer func() { a.settle(ending) }()
	ending = a.w.judge.ending(err, a.m.mayPark)
}

// Settles it, once, and logs it.
func (a *attempt) settle(ending *native.Ending) {
	a.w.mu.Lock()
	first := !a.settled
	if first {
		a.settled = true
		a.w.settled++
		if a.last != nil {
			a.last.Stop()
		}
	}
	a.w.mu.Unlock()
	if !first {
		return
	}
	log := a.w.judge.log
	settle(a.m, ending, a.w.subscription.Settle, log)
	// The native half logs what failed and what follows; only Go has the chain of causes and the stack of a panic.
	if ending.What != native.Defer {
		attributes := []any{"message", a.m, "error", short(ending.Error)}
		if ending.Stack != "" {
			attributes = append(attributes, "stack", cut(ending.Stack, mostStack))
		}
		log.say(slog.LevelDebug, "retryrmq: a handler failed", attributes...)
	}
}
