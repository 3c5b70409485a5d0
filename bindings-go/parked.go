package retryrmq

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"runtime"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Why a message is parked.
const (
	// ReasonExhausted: no retries are left, or no deferrals.
	ReasonExhausted = "exhausted"
	// ReasonFatal: no retry can fix its error.
	ReasonFatal = "fatal"
	// ReasonRequested: a handler asked for it, see [Park], or an operator did.
	ReasonRequested = "requested"
	// ReasonDeliveryLimit: it crashed its consumers too often, or the broker's delivery limit was reached.
	ReasonDeliveryLimit = "delivery-limit"
	// ReasonUndecodable: its body is not what the handler reads, or it cannot be read as AMQP.
	ReasonUndecodable = "undecodable"
	// ReasonExpired: its time to live ran out, and the broker dead-lettered it.
	ReasonExpired = "expired"
	// ReasonTooOld: its next attempt would be later than [Policy.MaxAge] allows.
	ReasonTooOld = "too-old"
	// ReasonRejected: another consumer rejected it, and the broker dead-lettered it.
	ReasonRejected = "rejected"
	// ReasonOverflow: its queue was full, and the broker dead-lettered it.
	ReasonOverflow = "overflow"
)

// ParkedMessage is a parked message, and the record of why it was parked. A consumer of this library parked it, or the broker.
type ParkedMessage struct {
	// Message is the message itself.
	Message *Message
	// Reason is why it was parked: exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old, rejected or overflow, see
	// [ReasonExhausted] and so on. Empty if neither a consumer nor the broker left a reason.
	Reason string
	// ParkedAt is when it was parked, in whole seconds.
	ParkedAt time.Time
	// Error is the last failure, one line.
	Error string
	// ErrorType is the name of the error's type; empty if unknown.
	ErrorType string
	// Stack is the stack of a panic, or the chain of causes; empty if there is none.
	Stack string
	// Fingerprint is sixteen hexadecimal digits that equal failures share.
	Fingerprint string
	// Attempts is how many attempts were made; 0 if the broker parked it and nothing counted.
	Attempts int
	// ByBroker reports whether the broker dead-lettered it. Otherwise a consumer of this library parked it.
	ByBroker bool
	// Home is the queue to which it is replayed: the work queue of this parking queue, or another queue from which the broker dead-lettered it.
	Home string
	// Mark is sixteen hexadecimal digits that identify this one message. They are computed from its id, its body and the record of its parking,
	// so only messages that are equal in all of these share it.
	Mark string

	number uint64
	conn   *Conn
	walk   *native.Walk
}

// Replay publishes a copy of the message to the tail of its Home queue, and acknowledges the parked one after the confirm. The copy's retries
// count from the start. The first replay to a queue takes two seconds. Call it before the loop that showed the message ends.
//
// It returns [ErrUnroutable] if the queue does not exist, and the errors of publishing: the message stays parked. It returns [ErrInvalidOption] if
// the message was already replayed or dropped, or could not be read as it is (see [Message.Mended]). After [ErrConnectionLost] it is still
// parked, and may also be in the work queue. If ctx ends first, its error is returned; the replay is still completed, so that the message
// is not in both queues.
func (p *ParkedMessage) Replay(ctx context.Context) error {
	return p.settle(ctx, (*native.Walk).Replay)
}

// ReplayTo is like [ParkedMessage.Replay], to a queue of your choice. It returns [ErrInvalidOption] also for a waiting or parking queue.
func (p *ParkedMessage) ReplayTo(ctx context.Context, queue string) error {
	if err := checkText("queue", queue); err != nil {
		return err
	}
	return p.settle(ctx, func(walk *native.Walk, number uint64) (*native.Operation, error) {
		return walk.ReplayTo(number, queue)
	})
}

// Drop drops the message for good (AMQP basic.ack). Call it before the loop that showed the message ends.
//
// It returns [ErrInvalidOption] if the message was already replayed or dropped. After [ErrConnectionLost] it may still be parked. If ctx ends
// first, its error is returned, and the message may still be dropped.
func (p *ParkedMessage) Drop(ctx context.Context) error { return p.settle(ctx, (*native.Walk).Discard) }

func (p *ParkedMessage) settle(ctx context.Context, begin func(*native.Walk, uint64) (*native.Operation, error)) error {
	// It must not be forgotten meanwhile.
	defer runtime.KeepAlive(p)
	if err := checkContext(ctx); err != nil {
		return err
	}
	if p.walk == nil {
		return invalidOption("this message was not shown by Conn.Parked")
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
		return asError(err)
	}
	return asError(op.Wait(ctx))
}

// ParkedWalk is the state of a loop over parked messages; see [Watch].
type ParkedWalk struct {
	// Remaining is how many messages were ready when the loop began and were not shown yet.
	Remaining int
	// Others is how many other consumers the parking queue had when the loop began. Other loops are among them. This loop does not see the
	// messages they hold, and the broker does not tell how many those are.
	Others int
	// Missed is how many messages were ready when the loop began, and were taken by others before this loop came to them.
	Missed int
	// Warning is what is wrong with the parking queue, as far as a client can see; empty if nothing is. A queue that somebody else declared may
	// drop parked messages. Policies cannot be seen.
	Warning string
}

// ParkedOption is an option of [Conn.Parked].
type ParkedOption func(*parkedOptions) error

type parkedOptions struct{ watch []*ParkedWalk }

// Watch updates walk with the state of the loop: at its begin, before each message, and at its end.
func Watch(walk *ParkedWalk) ParkedOption {
	return func(options *parkedOptions) error {
		if walk == nil {
			return invalidOption("the walk of `Watch` is nil")
		}
		options.watch = append(options.watch, walk)
		return nil
	}
}

func (o *parkedOptions) look(walk *native.Walk) error {
	if len(o.watch) == 0 {
		return nil
	}
	status, err := walk.Status()
	for _, watch := range o.watch {
		*watch = ParkedWalk{int(status.Remaining), int(status.Others), int(status.Missed), status.Warning}
	}
	return err
}

// Parked iterates over the messages that are parked for a queue when the loop begins:
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
// When the loop ends, messages that were neither replayed nor dropped are back in their places. An error ends the loop, and is its last value:
// [ErrQueueNotFound] if nothing was ever parked, [ErrAccessRefused] without permission to read the queue or to publish, [ErrClosed] after
// [Conn.Close], which the loop's body may call.
//
// A loop holds the messages it has shown, and some that it will show next. Another loop over the same queue at the same time, in any process,
// does not see them, and may see none; see [Watch]. Your program's memory has only those messages that it keeps.
func (c *Conn) Parked(ctx context.Context, queue string, options ...ParkedOption) iter.Seq2[*ParkedMessage, error] {
	return func(yield func(*ParkedMessage, error) bool) {
		if err := c.parked(ctx, queue, options, yield); err != nil && !errors.Is(err, errLoopLeft) {
			yield(nil, err)
		}
	}
}

// The loop was left.
var errLoopLeft = errors.New("left")

func (c *Conn) parked(ctx context.Context, queue string, options []ParkedOption,
	yield func(*ParkedMessage, error) bool) (err error) {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if err := checkText("queue", queue); err != nil {
		return err
	}
	if queue == "" {
		return invalidOption("`queue` is empty; name the queue whose parked messages to show")
	}
	var given parkedOptions
	for _, option := range options {
		if option == nil {
			return invalidOption("an option is nil")
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
	if c.broker != nil {
		return &Error{Code: ErrClosed.Code, Message: "`Parked` needs a broker, and a fake connection has none"}
	}
	open, stop := c.whileOpen(ctx)
	defer stop()
	op, err := c.client.Parked(queue)
	if err != nil {
		return asError(err)
	}
	walk, err := op.Walk(open)
	if err != nil {
		return asError(endReason(open, err))
	}
	// The walk may end after the connection.
	acquireLogger(c.logger)
	defer releaseLogger(c.logger)
	defer func() {
		// Also if ctx has ended: this puts the messages back in their places.
		op, closeErr := walk.Close()
		if closeErr == nil {
			closeErr = op.Wait(context.WithoutCancel(ctx))
		}
		walk.Free()
		if closeErr == nil || native.IsCode(closeErr, ErrClosed.Code) {
			return
		}
		if err == nil {
			err = asError(closeErr)
		} else {
			c.log.logLater(slog.LevelWarn, "retryrmq: a walk through parked messages ended badly", "queue", queue, "error", closeErr)
		}
	}()
	for {
		if err := given.look(walk); err != nil {
			return asError(err)
		}
		if open.Err() != nil {
			return endReason(open, native.ContextError(open))
		}
		op, err := walk.Next()
		if err != nil {
			return asError(err)
		}
		record, err := op.Record(open)
		if err != nil {
			return asError(endReason(open, err))
		}
		if err := given.look(walk); err != nil {
			return asError(err)
		}
		if record == nil {
			return nil
		}
		parked, err := readParked(record, queue)
		if err != nil {
			return err
		}
		parked.conn, parked.walk = c, walk
		// The native half keeps each message with its body, to replay it. It need not when the program cannot reach it any more.
		runtime.AddCleanup(parked, walk.Forget, parked.number)
		// Close waits for this goroutine, except while user code runs, because that may call Close.
		c.leave()
		entered = false
		if !yield(parked, nil) {
			return errLoopLeft
		}
		if err := c.enter(); err != nil {
			return err
		}
		entered = true
	}
}

// A record as the native half writes it.
type parkedRow struct {
	Reason      string  `json:"reason"`
	ParkedAt    *uint64 `json:"parked_at"` // seconds since 1970
	Error       string  `json:"error"`
	ErrorType   string  `json:"error_type"`
	Stack       string  `json:"stack"`
	Fingerprint string  `json:"fingerprint"`
	Attempts    int     `json:"attempts"`
	ByBroker    bool    `json:"by_broker"`
	Home        string  `json:"home"`
	Mark        string  `json:"mark"`
}

func readParked(record []byte, queue string) (*ParkedMessage, error) {
	r := native.NewReader(record)
	number, written, message := r.Uint64(), r.Bytes(), r.Bytes()
	if err := r.End(); err != nil {
		return nil, asError(err)
	}
	var row parkedRow
	if err := json.Unmarshal(written, &row); err != nil {
		return nil, asError(err)
	}
	p := &ParkedMessage{
		Reason: row.Reason, Error: row.Error, ErrorType: row.ErrorType, Stack: row.Stack, Fingerprint: row.Fingerprint,
		Attempts: row.Attempts, ByBroker: row.ByBroker, Home: row.Home, Mark: row.Mark, number: number,
	}
	if row.ParkedAt != nil {
		p.ParkedAt = unix(*row.ParkedAt)
	}
	var err error
	p.Message, err = readMessage(message, queue)
	return p, err
}
