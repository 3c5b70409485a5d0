package retryrmq

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

const (
	// The most acknowledgements passed to the core at once.
	mostAcks = 32
	// How long a thread waits for messages at a time.
	waitSlice = 60_000
	// How long taken or handled messages may wait while a handler takes long.
	slowAfter = time.Millisecond
	// How long nothing is taken after a fault. The core pauses as long before it opens a channel again.
	faultPause = 500 * time.Millisecond
)

// The goroutines of one consumer.
//
// They share the messages that were taken, so that no message waits behind a handler while another goroutine is idle. One of them at a time,
// when it has nothing else to do, fetches more messages, and waits for them in a thread. While handlers are quick, one goroutine does it all; the
// timer notices a slow handler, and wakes another goroutine.
type workers struct {
	queue        string
	handler      Handler
	batches      BatchHandler // instead of handler
	classifier   errorClassifier
	limit        time.Duration
	late         *timeoutError // for handlers that take longer
	drain        time.Duration
	concurrency  int
	subscription *native.Subscription
	// For handlers without a deadline; cancelled when Consume no longer waits for them.
	handlerContext context.Context
	cancel         context.CancelCauseFunc
	all            sync.WaitGroup
	// Closed when no more messages are wanted.
	noMoreWanted chan struct{}
	// [within], except in tests.
	wait func(limit time.Duration, done <-chan struct{}) bool

	mu         sync.Mutex
	work       sync.Cond
	ready      []*Message
	quick      bool     // handlers so quick that waking another goroutine would take longer
	slow       bool     // one takes long, which the core does not know yet
	sample     *Message // first of its batch: how long its handler takes says how many messages to take
	acks       native.Tokens
	spareAcks  native.Tokens // memory for the next acknowledgements
	alive      int           // goroutines
	idle       int           // of them, waiting for work
	running    int           // attempts for which people's code runs: a handler, or what is asked of its error
	settled    int           // of them, with their messages settled
	batchExtra int           // messages of the others, besides one each: those of batches
	taking     bool          // one of them fetches
	closing    bool
	ended      bool // nothing more will come
	handled    uint64
	until      time.Time // the end of the drain
	// Looks after what lies about.
	timer     *time.Timer
	timed     bool
	handledAt uint64
}

func newWorkers(ctx context.Context, queue string, handler Handler, batches BatchHandler, classifier errorClassifier, options *native.Options,
	subscription *native.Subscription) *workers {
	w := &workers{
		queue:        queue,
		handler:      handler,
		batches:      batches,
		classifier:   classifier,
		limit:        time.Duration(options.HandlerTimeout),
		late:         &timeoutError{time.Duration(options.HandlerTimeout)},
		drain:        time.Duration(options.DrainTimeout),
		concurrency:  options.Concurrency,
		subscription: subscription,
		noMoreWanted: make(chan struct{}),
		wait:         waitAtMost,
	}
	w.work.L = &w.mu
	w.timer = time.AfterFunc(time.Hour, w.look)
	w.timer.Stop()
	w.handlerContext, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return w
}

// Begins, unless the end came first.
func (w *workers) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closing {
		w.wake()
	}
}

// Takes no more messages; running handlers may finish, the rest is requeued.
func (w *workers) close() {
	w.until = time.Now().Add(w.drain)
	w.subscription.Close()
	close(w.noMoreWanted)
	w.mu.Lock()
	w.closing = true
	unstarted := w.ready
	w.ready = nil
	w.work.Broadcast()
	w.mu.Unlock()
	w.giveBack(unstarted)
}

var errDrained = &Error{Code: ErrTimeout.Code, Message: "the drain timeout has passed"}

// The end, after that of the subscription. For the rest of the drain it waits for handlers that still run although their messages are settled
// (after their deadline) or back in the queue (after a lost connection), and for methods of their errors. Returns how many attempts still run
// user code, and how many of them have not settled their messages.
func (w *workers) end() (left, unsettled int) {
	w.mu.Lock()
	w.closing, w.ended = true, true
	w.timer.Stop()
	w.work.Broadcast()
	w.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		w.all.Wait()
		close(gone)
	}()
	waitAtMost(time.Until(w.until), gone)
	w.mu.Lock()
	left, unsettled = w.running, w.running-w.settled+w.batchExtra
	w.mu.Unlock()
	w.cancel(errDrained)
	if left == 0 {
		<-gone // no goroutine runs user code any more, or will; the rest are about to end
	}
	return left, unsettled
}

func (w *workers) giveBack(messages []*Message) {
	if len(messages) == 0 {
		return
	}
	var tokens native.Tokens
	for _, m := range messages {
		tokens.Add(m.token)
	}
	w.subscription.GiveBack(tokens)
}

// Starts another goroutine, if it can be of use. The caller holds the lock.
func (w *workers) wake() {
	if w.idle > 0 {
		w.work.Signal()
	} else if w.alive < w.concurrency {
		w.alive++
		w.all.Add(1)
		go w.loop()
	}
}

func (w *workers) loop() {
	defer w.all.Done()
	over := false
	defer func() {
		if !over { // user code has ended this goroutine; another one continues
			w.mu.Lock()
			defer w.mu.Unlock()
			w.alive--
			w.wake()
		}
	}()
	w.mu.Lock()
	for {
		m, batch := w.next()
		if m == nil {
			over = true
			w.alive--
			w.mu.Unlock()
			return
		}
		w.running++
		if batch == nil {
			w.mu.Unlock()
			w.attempt(m)
		} else {
			w.batchExtra += len(batch) - 1
			w.mu.Unlock()
			w.attemptBatch(batch)
		}
		w.mu.Lock()
	}
}

// The next message, or for a handler of batches the first one of the next batch and all of it; nil at the end. The native half makes the batches,
// and hands out one at a time. The caller holds the lock, which this may release for a while.
func (w *workers) next() (m *Message, batch []*Message) {
	for {
		switch {
		case len(w.ready) > 0:
			m = w.ready[0]
			if w.batches != nil {
				batch, w.ready = w.ready, nil
			} else {
				w.ready[0] = nil // do not keep a handled message
				w.ready = w.ready[1:]
			}
			if (w.quick || w.acks.Len() > 0) && !w.timed {
				w.watch()
			}
			if !w.quick && (len(w.ready) > 0 || !w.taking) {
				w.wake()
			}
			return m, batch
		case w.ended:
			w.flush()
			return nil, nil
		case !w.taking:
			w.take()
		case w.acks.Len() > 0:
			w.flush()
		default:
			w.idle++
			w.work.Wait()
			w.idle--
		}
	}
}

// Fetches messages, and waits for them if it must. Passes acknowledgements to the core in the same call.
func (w *workers) take() {
	w.taking = true
	acks, slow, ended := w.acks, w.slow, w.sample == nil
	w.acks, w.spareAcks, w.slow = w.spareAcks, nil, false
	w.mu.Unlock()
	var messages []*Message
	var unreadable native.Tokens
	quick, err := w.subscription.Exchange(acks, slow, ended, waitSlice, func(batch []byte) { messages, unreadable = w.read(batch) })
	w.afterTaking(unreadable, err)
	w.mu.Lock()
	w.taking, w.spareAcks, w.quick = false, acks[:0], quick
	if w.closing {
		if len(messages) == 0 {
			w.ended = true
			w.work.Broadcast()
			return
		}
		w.mu.Unlock()
		w.giveBack(messages)
		w.mu.Lock()
		return
	}
	w.ready = messages
	if w.sample == nil && len(messages) > 0 {
		w.sample = messages[0]
	}
}

// Gives back what could not be read: nobody else knows it. It is redelivered at once, so after a fault there is a pause.
func (w *workers) afterTaking(unreadable native.Tokens, err error) {
	w.sayFault(err)
	if unreadable.Len() > 0 {
		w.subscription.GiveBack(unreadable)
	}
	if unreadable.Len() > 0 || err != nil {
		w.wait(faultPause, w.noMoreWanted)
	}
}

// A handler has ended. The caller holds the lock.
func (w *workers) count(m *Message) {
	w.handled++
	if m == w.sample {
		w.sample = nil
	}
}

// The messages of a batch; if it cannot be read, their tokens.
func (w *workers) read(batch []byte) ([]*Message, native.Tokens) {
	messages, err := readBatch(batch, w.queue)
	if err != nil {
		w.sayFault(err)
		return nil, tokensOf(batch)
	}
	return messages, nil
}

// Logs a fault of ours, if it is one.
func (w *workers) sayFault(err error) {
	var fault *Error
	if errors.As(asError(err), &fault) {
		w.classifier.log.logLater(slog.LevelError, fault.Error(), "queue", w.queue, "detail", short(fault.Detail))
	}
}

// Passes the acknowledgements to the core. The caller holds the lock, which this releases meanwhile.
func (w *workers) flush() {
	if w.acks.Len() == 0 {
		return
	}
	acks := w.acks
	w.acks, w.spareAcks = w.spareAcks, nil
	w.mu.Unlock()
	w.pass(acks)
	w.mu.Lock()
	w.spareAcks = acks[:0]
}

func (w *workers) pass(acks native.Tokens) {
	if acks.Len() == 0 {
		return
	}
	_, err := w.subscription.Exchange(acks, false, true, 0, nil)
	w.sayFault(err)
}

// Sets the timer: this handler may be slow, and the only one that runs. The caller holds the lock.
func (w *workers) watch() {
	w.timed, w.handledAt = true, w.handled
	w.timer.Reset(slowAfter)
}

// Passes on waiting messages and acknowledgements: if no handler has ended since the last look, they are slow.
func (w *workers) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timed = false
	if w.ended {
		return
	}
	if w.handled == w.handledAt {
		w.slow, w.quick = true, false
		w.flush()
		w.wake()
	} else if w.running > 0 {
		w.watch()
	}
}
