package retryrmq

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Handler handles a message. nil acknowledges it. An error or a panic is a failed attempt: the message is retried, and parked in the end. An
// error made by [After], [Permanent], [Undecodable], [Defer] or [Park], wrapped or not, decides otherwise.
//
// The context has the values of Consume's context, and the handler timeout as its deadline; [context.Cause] is then the error that the record of the
// message gets, of the type HandlerTimeout. The context does not end with Consume's, so that running handlers can finish. It ends when the drain
// timeout is over; [context.Cause] is then an [ErrTimeout].
type Handler func(ctx context.Context, m *Message) error

// Consume handles the messages of a queue until ctx ends. Then it drains: it waits for running handlers, requeues the other messages, and returns
// nil. Any number of consumers may run on one connection, even for the same queue.
//
// It returns an error if the broker refuses the consumer (no message was taken then), [ErrClosed] if the connection was closed or a bug in
// retryrmq ended the consumer, and the error with which the connection ended by itself, see [EndWhenRefused].
//
// It returns [ErrTimeout] if handlers still run after the drain timeout. They are abandoned, and their unsettled messages are requeued.
// Messages of handlers that ran longer than their [HandlerTimeout] are settled already. The drain timeout limits all of your code that Consume
// waits for: methods of errors, functions of [Fatal], [OnEvent] and [OnReady], and log handlers.
func (c *Conn) Consume(ctx context.Context, queue string, handler Handler, options ...Option) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if handler == nil {
		return invalidOption("the handler is nil")
	}
	plan, err := newPlan(queue, options)
	if err != nil {
		return err
	}
	if err := plan.checkSingle(); err != nil {
		return err
	}
	if c != nil {
		if handler, err = plan.wrap(handler, c.middleware); err != nil {
			return err
		}
	}
	return c.consume(ctx, queue, handler, nil, plan)
}

// Consumes with a handler of single messages or one of batches.
func (c *Conn) consume(ctx context.Context, queue string, handler Handler, batches BatchHandler, plan *plan) error {
	checked, err := native.NewOptions(plan.given)
	if err != nil {
		return asError(err)
	}
	defer checked.Free()
	if c != nil && c.broker != nil {
		return c.consumeFromFake(ctx, queue, handler, batches, plan, time.Duration(checked.DrainTimeout))
	}
	until := time.Now()
	callbacks := &readyCallbacks{ready: plan.ready, done: make(chan struct{})}
	err = c.consumeUntil(ctx, queue, plan, checked, callbacks, &until, func(subscription *native.Subscription) *workers {
		return newWorkers(ctx, queue, handler, batches, newErrorClassifier(plan, checked, c.log), checked, subscription)
	})
	// After leave: a function of OnReady may call Close, which waits for leave.
	if !callbacks.wait(listenerTimeout(until)) && err == nil {
		err = userCodeLeft("OnReady", queue)
	}
	return err
}

// Subscribes, and has workers handle messages to the end; until says when the drain is over.
func (c *Conn) consumeUntil(ctx context.Context, queue string, plan *plan, checked *native.Options, callbacks *readyCallbacks, until *time.Time,
	newWorkers func(*native.Subscription) *workers) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	listeners := listen(plan.tell, c.log, queue)
	subscription, err := c.subscribe(ctx, checked, listeners.id())
	if err == nil {
		w := newWorkers(subscription)
		err = c.run(ctx, queue, callbacks, w)
		*until = w.until
	}
	if !listeners.end(listenerTimeout(*until)) && err == nil {
		err = userCodeLeft("OnEvent", queue)
	}
	return err
}

// The rest of the drain timeout, and at least enough for listeners to get the last events.
func listenerTimeout(until time.Time) time.Duration { return max(time.Until(until), userCodeTimeout) }

func userCodeLeft(option, queue string) error {
	return &Error{Code: ErrTimeout.Code, Message: fmt.Sprintf("the drain timeout has left a function of %s of %q running", option, queue)}
}

// Subscribes; ends early with ctx or the connection.
func (c *Conn) subscribe(ctx context.Context, options *native.Options, listener uint64) (*native.Subscription, error) {
	ctx, stop := c.whileOpen(ctx)
	defer stop()
	op, err := c.client.Subscribe(options, listener)
	if err != nil {
		return nil, asError(err)
	}
	subscription, err := op.Subscription(ctx)
	return subscription, asError(endReason(ctx, err))
}

func (c *Conn) run(ctx context.Context, queue string, callbacks *readyCallbacks, w *workers) error {
	subscription := w.subscription
	defer subscription.Free()
	c.mu.Lock()
	c.consuming[queue] = append(c.consuming[queue], subscription)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		others := slices.DeleteFunc(c.consuming[queue], func(s *native.Subscription) bool { return s == subscription })
		c.consuming[queue] = others
		if len(others) == 0 {
			delete(c.consuming, queue)
			c.stats[queue] = newStats(subscription.Stats())
		}
	}()

	closed, err := subscription.Closed()
	if err != nil {
		return asError(err)
	}
	callbacks.begin(w.start, c.log, queue)
	select {
	case <-ctx.Done():
	case <-c.closing:
		err = ErrClosed
	case <-closed.Done():
		if err = asError(c.client.CheckEnd()); err == nil {
			err = &Error{Code: ErrClosed.Code, Message: fmt.Sprintf("the consumer of %q ended unexpectedly; see the log", queue)}
		}
	}
	w.close()
	if bug := closed.Wait(context.Background()); bug != nil {
		err = asError(bug)
	}
	if left, unsettled := w.end(); left > 0 {
		err = handlersLeft(queue, left, unsettled)
	}
	return err
}

// The functions of [OnReady], on a goroutine of their own.
type readyCallbacks struct {
	ready []func()
	begun bool
	done  chan struct{}
}

// Calls them, and then starts the handlers.
func (a *readyCallbacks) begin(handlers func(), log *asyncLogger, queue string) {
	if len(a.ready) == 0 {
		handlers()
		return
	}
	a.begun = true
	go func() {
		defer close(a.done)
		defer handlers() // even if one of them ends the goroutine
		for _, f := range a.ready {
			if panicked := catchPanic(f); panicked != nil {
				log.logLater(slog.LevelError, "retryrmq: a function of OnReady panicked", "queue", queue, "panic", short(panicked.text()),
					"stack", panicked.stack)
			}
		}
	}()
}

// Waits for them; false if they take longer than the limit.
func (a *readyCallbacks) wait(limit time.Duration) bool { return !a.begun || waitAtMost(limit, a.done) }

// The error for handlers that still run after the drain timeout. Some of them have not settled their messages.
func handlersLeft(queue string, left, unsettled int) error {
	said := fmt.Sprintf("the drain timeout has left %s of %q running", countOf(left, "handler"), queue)
	if unsettled > 0 {
		said += fmt.Sprintf("; %s requeued unsettled", countOf(unsettled, "message"))
	}
	return &Error{Code: ErrTimeout.Code, Message: said}
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
