package retryrmq

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Handler handles a message. nil acknowledges it; an error is a failed attempt, and so is a panic. An error made by [After],
// [Permanent], [Defer] or [Park], wrapped or not, says what else is to become of the message.
//
// The context has the values of Consume's, and the handler timeout as its deadline. It does not end with Consume's context, so
// that what runs may finish; it ends when the drain timeout has passed, and [context.Cause] then is an [ErrTimeout].
type Handler func(ctx context.Context, m *Message) error

// Consume handles the messages of a queue until ctx ends; then it lets running handlers finish, gives back the rest, and
// returns nil. It returns an error when the subscription is refused, and [ErrClosed] when the connection was closed. When
// handlers are still running at the drain timeout, they are left behind, and the error is [ErrTimeout]: messages that they have
// not settled are the broker's again. Those of handlers that are past their [HandlerTimeout] are settled already.
//
// Any number of consumers may run on one connection, also for the same queue.
func (c *Conn) Consume(ctx context.Context, queue string, handler Handler, options ...Option) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if handler == nil {
		return badOption("the handler is nil")
	}
	plan, err := newPlan(queue, options)
	if err != nil {
		return err
	}
	checked, err := native.NewOptions(&plan.wanted)
	if err != nil {
		return ours(err)
	}
	defer checked.Free()
	var announcing sync.WaitGroup
	defer announcing.Wait() // after leave: a function of OnReady may call Close, which waits for that
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	listeners := listen(plan.tell)
	defer listeners.end()
	subscription, err := c.subscribe(ctx, checked, listeners.id())
	if err != nil {
		return err
	}
	return c.run(ctx, queue, plan.ready, &announcing, newWorkers(ctx, queue, handler, plan, checked, subscription))
}

// Subscribes; ends early with ctx or the connection.
func (c *Conn) subscribe(ctx context.Context, options *native.Options, listener uint64) (*native.Subscription, error) {
	ctx, stop := c.whileOpen(ctx)
	defer stop()
	op, err := c.client.Subscribe(options, listener)
	if err != nil {
		return nil, ours(err)
	}
	subscription, err := op.Subscription(ctx)
	return subscription, ours(whyEnded(ctx, err))
}

func (c *Conn) run(ctx context.Context, queue string, ready []func(), announcing *sync.WaitGroup, w *workers) error {
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
		return ours(err)
	}
	announce(ready, w.start, announcing)
	select {
	case <-ctx.Done():
	case <-c.closing:
		err = ErrClosed
	case <-closed.Done():
		err = &Error{Code: ErrClosed.Code, Message: fmt.Sprintf("the consumer of %q ended by itself", queue)}
	}
	w.close()
	_ = closed.Wait(context.Background())
	if left, unsettled := w.end(); left > 0 {
		err = leftBehind(queue, left, unsettled)
	}
	return err
}

// Tells that the subscription stands, on a goroutine of its own, and begins then.
func announce(ready []func(), begin func(), announcing *sync.WaitGroup) {
	if len(ready) == 0 {
		begin()
		return
	}
	announcing.Add(1)
	go func() {
		defer announcing.Done()
		defer begin() // also when one of them ends the goroutine
		for _, f := range ready {
			if gone := safely(f); gone != nil {
				logger().Error("retryrmq: a function of OnReady panicked", "panic", short(gone.text()), "stack", gone.stack)
			}
		}
	}()
}

// Handlers run after the drain timeout, some of which have not settled their messages.
func leftBehind(queue string, left, unsettled int) error {
	said := fmt.Sprintf("the drain timeout has left %s of %q running", counting(left, "handler"), queue)
	if unsettled > 0 {
		said += fmt.Sprintf("; the broker has %s again, not settled", counting(unsettled, "message"))
	}
	return &Error{Code: ErrTimeout.Code, Message: said}
}

func counting(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
