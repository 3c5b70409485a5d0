package retryrmq

import (
	"context"
	"fmt"
	"slices"

	"github.com/retryrmq/retryrmq/bindings-go/internal/batchresult"
	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// BatchHandler handles several messages in one call, as for a bulk insert. Every message keeps its own attempts, retries and end.
//
// nil acknowledges all. An error or a panic is a failed attempt at all, and [After], [Permanent], [Undecodable], [Defer] and [Park] decide for
// all. With [BatchErrors] each message ends by an error of its own.
//
// The context is that of a [Handler]. At the handler timeout all messages of the batch have failed.
type BatchHandler func(ctx context.Context, messages []*Message) error

// BatchErrors is an error of a [BatchHandler] with one error for each message, in the order in which the handler got them. It is nil for a message
// that succeeded, which is acknowledged.
//
//	errs := make(retryrmq.BatchErrors, len(messages))
//	for i, m := range messages {
//		errs[i] = ship(ctx, m)
//	}
//	return errs
//
// If there are more or fewer than messages, or the handler has changed the slice that it got, such as by sorting it, nobody knows which error is
// whose: all have failed, with the error type BatchAnswerError. Sort a copy.
type BatchErrors []error

// Error counts the messages that failed.
func (b BatchErrors) Error() string {
	failed := 0
	for _, err := range b {
		if err != nil {
			failed++
		}
	}
	return fmt.Sprintf("%d of %s failed", failed, countOf(len(b), "message"))
}

// Unwrap returns the errors of the messages that failed.
func (b BatchErrors) Unwrap() (errs []error) {
	for _, err := range b {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// ConsumeBatches is like [Conn.Consume] for a handler that gets several messages at once, at most those of [Batch], which it needs. An incomplete
// batch waits for more messages, for [BatchWait] from its first on. At the end, running handlers may finish; messages that no handler has got are
// requeued, also those of an incomplete batch.
//
// [UseAll] does not apply, and [Use] is an [ErrInvalidOption]: a [Middleware] is around one message. Wrap the handler of batches itself.
func (c *Conn) ConsumeBatches(ctx context.Context, queue string, handler BatchHandler, options ...Option) error {
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
	switch {
	case plan.given["batch"] == nil:
		return invalidOption("`ConsumeBatches` needs `Batch`, which says how many messages its handler gets at most")
	case len(plan.middleware) > 0:
		return invalidOption("`Use` is for handlers of single messages; wrap the handler of batches itself")
	}
	return c.consume(ctx, queue, nil, handler, plan)
}

// A handler of single messages must not get batches.
func (p *plan) checkSingle() error {
	if p.given["batch"] != nil {
		return invalidOption("`Batch` is for `ConsumeBatches`: this handler gets single messages")
	}
	return nil
}

// The error of a batch whose answers belong to no messages.
type batchResultError struct{ text string }

func (a *batchResultError) Error() string { return a.text }

// ErrorType returns the name that it has in every language.
func (a *batchResultError) ErrorType() string { return "BatchAnswerError" }

func init() { batchresult.Each = batchResults }

// What err, of a handler of batches, is for each of its messages; or for all, if each is nil.
func batchResults(err error, count int, changed func() bool) (each []error, all error) {
	for _, one := range shownErrors(err) {
		if _, ok := one.(*panicError); ok || isWrapper(one) {
			break // it, or Permanent and its like, decides for all
		}
		found, ok := one.(BatchErrors)
		switch {
		case !ok:
			continue
		case len(found) != count:
			return nil, &batchResultError{fmt.Sprintf("the handler answered %d of %d messages; return one answer for each, in their order", len(found), count)}
		case changed():
			return nil, &batchResultError{"the handler changed the slice of its messages, so its answers may belong to others; sort or change a copy"}
		}
		return found, nil
	}
	return nil, err
}

// The ends of the messages of a batch whose handler returned err: nil for one that succeeded.
func (j *errorClassifier) classifyBatch(err error, messages, given []*Message) []*native.End {
	ends := make([]*native.End, len(messages))
	each, err := batchResults(err, len(messages), func() bool { return !slices.Equal(given, messages) })
	if each != nil {
		for i, err := range each {
			if err != nil {
				ends[i] = j.classify(err, messages[i])
			}
		}
		return ends
	}
	// All have the same.
	subject := messages[0]
	for _, m := range messages {
		if m.mayPark {
			subject = m // whose record needs a stack
			break
		}
	}
	end := j.classify(err, subject)
	for i := range ends {
		ends[i] = end
	}
	return ends
}

// One call of the handler of batches, and its end: the handler's or the deadline, whichever is first.
func (w *workers) attemptBatch(messages []*Message) {
	a := &attempt{w: w, messages: messages, given: slices.Clone(messages), inside: 1}
	defer a.leave()
	ctx, result := w.handlerContext, func(err error) error { return err }
	if w.limit > 0 {
		limited, cancel, limit := withHandlerDeadline(w.handlerContext, w.late)
		defer cancel()
		stop := context.AfterFunc(limited, func() {
			if context.Cause(limited) == error(w.late) {
				a.onDeadline(w.late)
			}
		})
		defer stop()
		ctx, result = limited, limit.result
	}
	returned := false
	defer func() {
		if !returned {
			a.returned(result(goexit()))
		}
	}()
	err := call(ctx, func(ctx context.Context, _ *Message) error { return w.batches(ctx, a.given) }, nil)
	returned = true
	a.returned(result(err))
}
