package retryrmq

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Why a message is parked.
const (
	// ReasonExhausted: no retries are left, or no deferrals.
	ReasonExhausted = "exhausted"
	// ReasonFatal: no retry could mend its error.
	ReasonFatal = "fatal"
	// ReasonRequested: its handler asked for it, see [Park].
	ReasonRequested = "requested"
	// ReasonDeliveryLimit: its consumers crashed too often.
	ReasonDeliveryLimit = "delivery-limit"
	// ReasonUndecodable: it cannot be read as AMQP.
	ReasonUndecodable = "undecodable"
	// ReasonExpired: it was in its queue for longer than its time to live.
	ReasonExpired = "expired"
	// ReasonTooOld: it is older than [Policy.MaxAge] allows.
	ReasonTooOld = "too-old"
	// ReasonRejected: a consumer rejected it.
	ReasonRejected = "rejected"
	// ReasonOverflow: its queue was full.
	ReasonOverflow = "overflow"
)

// ParkedMessage is a parked message and the record of why. A consumer of this library parked it, or the broker.
type ParkedMessage struct {
	// Message is the message itself.
	Message *Message
	// Reason is one of exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old, rejected and overflow, as
	// [ReasonExhausted] and so on; empty when nobody left one.
	Reason string
	// ParkedAt is when, to the second.
	ParkedAt time.Time
	// Error is the last failure, one line.
	Error string
	// ErrorType is the name of its type.
	ErrorType string
	// Stack is the stack of a panic, or the chain of causes.
	Stack string
	// Fingerprint is sixteen digits that equal failures share.
	Fingerprint string
	// Attempts is how many were made; 0 when the broker parked it and they were not counted.
	Attempts int
	// ByBroker says whether the broker dead-lettered it.
	ByBroker bool
	// Home is the queue that it belongs to and is replayed to: the one whose parking queue this is, or another one out of which
	// the broker dead-lettered it.
	Home string
	// Mark is sixteen hexadecimal digits that name this one message, wherever it stands: of its id, its body and the record of
	// its parking. Only messages that are equal in all of these share it.
	Mark string

	number uint64
	conn   *Conn
	walk   *native.Walk
}

// Replay sends the message back to the tail of its Home, its retries counted from the start. It works until the loop
// that showed the message ends. When ctx ends before, its error is returned, and the message may be replayed all the same: what
// was begun comes to its end, so that it is never in both queues.
func (p *ParkedMessage) Replay(ctx context.Context) error {
	return p.settle(ctx, (*native.Walk).Replay)
}

// ReplayTo is as [ParkedMessage.Replay], to a queue of your choice.
func (p *ParkedMessage) ReplayTo(ctx context.Context, queue string) error {
	if err := checkText("queue", queue); err != nil {
		return err
	}
	return p.settle(ctx, func(walk *native.Walk, number uint64) (*native.Operation, error) {
		return walk.ReplayTo(number, queue)
	})
}

// Drop drops the message for good. It works until the loop that showed the message ends. When ctx ends before, its error is
// returned, and the message may be dropped all the same.
func (p *ParkedMessage) Drop(ctx context.Context) error { return p.settle(ctx, (*native.Walk).Discard) }

func (p *ParkedMessage) settle(ctx context.Context, begin func(*native.Walk, uint64) (*native.Operation, error)) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if p.walk == nil {
		return badOption("this message was not shown by Conn.Parked")
	}
	if err := p.conn.enter(); err != nil {
		return err
	}
	defer p.conn.leave()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	op, err := begin(p.walk, p.number)
	if err != nil {
		return ours(err)
	}
	return ours(op.Wait(ctx))
}

// ParkedWalk is what is known of a loop over parked messages beside them; see [Watch].
type ParkedWalk struct {
	// Remaining is how many messages were there when the loop began and have not been seen yet.
	Remaining int
	// Others is how many others were taking messages out of the parking queue when the loop began, other loops among them. This
	// loop does not see the messages that they hold, and the broker does not tell how many those are.
	Others int
	// Missed is how many messages were there when the loop began, and were taken by others before they came.
	Missed int
	// Warning is what is wrong with the parking queue, as far as a client can see, or empty: a queue made by somebody else may
	// drop what is parked. Policies cannot be seen.
	Warning string
}

// ParkedOption is an option of [Conn.Parked].
type ParkedOption func(*parkedOptions) error

type parkedOptions struct{ watch []*ParkedWalk }

// Watch keeps walk as it is with the loop: from its begin, before each message, to its end.
func Watch(walk *ParkedWalk) ParkedOption {
	return func(options *parkedOptions) error {
		if walk == nil {
			return badOption("the walk of `Watch` is nil")
		}
		options.watch = append(options.watch, walk)
		return nil
	}
}

func (o *parkedOptions) look(walk *native.Walk) error {
	if len(o.watch) == 0 {
		return nil
	}
	outlook, err := walk.Outlook()
	for _, watch := range o.watch {
		*watch = ParkedWalk{int(outlook.Remaining), int(outlook.Others), int(outlook.Missed), outlook.Warning}
	}
	return err
}

// Parked iterates over the messages parked for a queue, those that are there when the loop begins:
//
//	for parked, err := range conn.Parked(ctx, "orders") {
//		if err != nil {
//			return err
//		}
//		if parked.Reason == retryrmq.ReasonExhausted {
//			if err := parked.Replay(ctx); err != nil {
//				return err
//			}
//		}
//	}
//
// What is neither replayed nor dropped is back in its place when the loop ends. An error ends the loop, and is its last
// value; after [Conn.Close], which the loop's body may call, that is [ErrClosed].
//
// A loop holds the messages that it may still show: another loop over the same queue at the same time, in whatever process,
// does not see them, and may see none; [Watch] tells.
func (c *Conn) Parked(ctx context.Context, queue string, options ...ParkedOption) iter.Seq2[*ParkedMessage, error] {
	return func(yield func(*ParkedMessage, error) bool) {
		if err := c.parked(ctx, queue, options, yield); err != nil && !errors.Is(err, errBroken) {
			yield(nil, err)
		}
	}
}

// The loop was left.
var errBroken = errors.New("left")

func (c *Conn) parked(ctx context.Context, queue string, options []ParkedOption,
	yield func(*ParkedMessage, error) bool) (err error) {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if err := checkText("queue", queue); err != nil {
		return err
	}
	if queue == "" {
		return badOption("`queue` is empty; name the queue whose parked messages to show")
	}
	var given parkedOptions
	for _, option := range options {
		if option == nil {
			return badOption("an option is nil")
		}
		if err := option(&given); err != nil {
			return err
		}
	}
	if err := c.enter(); err != nil {
		return err
	}
	entered := true
	defer func() {
		if entered {
			c.leave()
		}
	}()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	open, stop := c.whileOpen(ctx)
	defer stop()
	op, err := c.client.Parked(queue)
	if err != nil {
		return ours(err)
	}
	walk, err := op.Walk(open)
	if err != nil {
		return ours(whyEnded(open, err))
	}
	// The end of the walk may come after that of the connection.
	hold(c.logger)
	defer release(c.logger)
	defer func() {
		// Also when ctx has ended: what was shown goes back to its place by this.
		op, closeErr := walk.Close()
		if closeErr == nil {
			closeErr = op.Wait(context.WithoutCancel(ctx))
		}
		walk.Free()
		if closeErr == nil || native.IsCode(closeErr, ErrClosed.Code) {
			return
		}
		if err == nil {
			err = ours(closeErr)
		} else {
			c.log.sayLater(slog.LevelWarn, "retryrmq: a walk through parked messages ended badly", "queue", queue, "error", closeErr)
		}
	}()
	for {
		if err := given.look(walk); err != nil {
			return ours(err)
		}
		if open.Err() != nil {
			return whyEnded(open, native.ContextError(open))
		}
		op, err := walk.Next()
		if err != nil {
			return ours(err)
		}
		record, err := op.Record(open)
		if err != nil {
			return ours(whyEnded(open, err))
		}
		if err := given.look(walk); err != nil {
			return ours(err)
		}
		if record == nil {
			return nil
		}
		parked, err := readParked(record, queue)
		if err != nil {
			return err
		}
		parked.conn, parked.walk = c, walk
		// Close waits for this goroutine, except while people's code runs: that may be what calls it.
		c.leave()
		entered = false
		if !yield(parked, nil) {
			return errBroken
		}
		if err := c.enter(); err != nil {
			return err
		}
		entered = true
	}
}

func readParked(record []byte, queue string) (*ParkedMessage, error) {
	r := native.NewReader(record)
	p := &ParkedMessage{number: r.Uint64(), Reason: r.OptionalString()}
	if at, ok := r.OptionalUint64(); ok {
		p.ParkedAt = unix(at)
	}
	p.Error, p.ErrorType, p.Stack, p.Fingerprint = r.String(), r.String(), r.OptionalString(), r.String()
	p.Attempts, p.ByBroker, p.Home, p.Mark = int(r.Uint32()), r.Bool(), r.String(), r.String()
	message := r.Bytes()
	if err := r.End(); err != nil {
		return nil, err
	}
	var err error
	p.Message, err = readMessage(message, queue)
	return p, err
}
