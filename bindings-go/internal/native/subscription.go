package native

/*
#include "shim.h"

#cgo noescape rr_subscription_exchange
#cgo nocallback rr_subscription_exchange
#cgo noescape rr_subscription_settle
#cgo nocallback rr_subscription_settle
*/
import "C"

import "encoding/binary"

// Subscription is a running consumer.
type Subscription struct{ object }

// Tokens are names of deliveries, as the native half reads them.
type Tokens []byte

// Add adds one.
func (t *Tokens) Add(token uint64) { *t = binary.LittleEndian.AppendUint64(*t, token) }

// Len is how many there are.
func (t Tokens) Len() int { return len(t) / 8 }

// Exchange acknowledges acks and takes messages, as a batch, which read must not keep. When there are none it waits, waitMS at most, and read
// is not called; 0 takes none. slow says that handlers take long, so that few are taken; ended, that the handler which is watched has ended,
// if there is one: that of the first message is watched next. Returns whether the handlers of the batch before are so quick that waking
// another goroutine would take longer. After an error nothing was taken.
func (s *Subscription) Exchange(acks Tokens, slow, ended bool, waitMS uint32, read func(batch []byte)) (quick bool, err error) {
	if !s.enter() {
		return false, nil
	}
	defer s.leave()
	bytes, n := lend(acks)
	answer := C.rr_subscription_exchange(C.uint64_t(s.handle), bytes, n, C.bool(slow), C.bool(ended), C.uint32_t(waitMS))
	if answer.code != 0 {
		return false, errorFrom(answer)
	}
	readBorrowed(answer, func(batch []byte) {
		last := len(batch) - 1
		quick = batch[last] != 0
		read(batch[:last])
	})
	return quick, nil
}

// End is the end of an attempt that was not simply handled.
type End struct {
	What      uint8
	Error     string
	ErrorType string
	Kinds     []string
	Stack     string
	// Delay is in nanoseconds; for a retry, nil leaves it to the policy.
	Delay *uint64
}

// What an attempt can end with; the numbers are the native half's.
const (
	Ack uint8 = iota + 1
	Retry
	Park
	Fatal
	Defer
	Undecodable
)

func (e *End) bytes() []byte {
	var w Writer
	w.Int32(int32(e.What))
	switch e.What {
	case Ack:
	case Defer:
		w.Uint64(*e.Delay)
	default:
		w.String(e.Error)
		w.String(e.ErrorType)
		w.Int32(int32(len(e.Kinds)))
		for _, kind := range e.Kinds {
			w.String(kind)
		}
		w.OptionalString(e.Stack)
		if e.What == Retry {
			Optional(&w, e.Delay, w.Uint64)
		}
	}
	return w.B
}

// Settle ends an attempt; of a subscription that is gone, nothing. An end that is refused has ended nothing.
func (s *Subscription) Settle(token uint64, end *End) error {
	if !s.enter() {
		return nil
	}
	defer s.leave()
	written := end.bytes()
	if len(written) > maxBytes {
		return errTooLarge
	}
	bytes, n := lend(written)
	_, err := valueOf(C.rr_subscription_settle(C.uint64_t(s.handle), C.uint64_t(token), bytes, n))
	return err
}

// GiveBack gives back messages that no handler has started on.
func (s *Subscription) GiveBack(unstarted Tokens) {
	if !s.enter() {
		return
	}
	defer s.leave()
	bytes, n := lend(unstarted)
	_, _ = valueOf(C.rr_subscription_give_back(C.uint64_t(s.handle), bytes, n))
}

// Close asks for the end.
func (s *Subscription) Close() {
	if !s.enter() {
		return
	}
	defer s.leave()
	_, _ = valueOf(C.rr_subscription_close(C.uint64_t(s.handle)))
}

// Closed begins to wait for the end.
func (s *Subscription) Closed() (*Operation, error) {
	if !s.enter() {
		return nil, ErrFreed
	}
	defer s.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_subscription_wait_closed(C.uint64_t(s.handle), C.uint64_t(ticket))
	})
}

// Stats are its numbers by name.
func (s *Subscription) Stats() map[string]uint64 {
	if !s.enter() {
		return nil
	}
	defer s.leave()
	answer, err := bytesOf(C.rr_subscription_stats(C.uint64_t(s.handle)))
	if err != nil {
		return nil
	}
	r := NewReader(answer)
	numbers := make(map[string]uint64)
	for range r.Count() {
		name := r.String()
		numbers[name] = r.Uint64()
	}
	return numbers
}
