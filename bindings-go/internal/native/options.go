package native

/*
#include "shim.h"
*/
import "C"

import (
	"encoding/json"
	"math"
	"time"
)

const maxBytes = math.MaxInt32

// OptionValues is what was said of a consumer: the options by the names that they have in the core, durations in seconds. What is not in it is
// the core's to decide.
type OptionValues map[string]any

// Options are the options of a consumer, checked.
type Options struct {
	object
	// Concurrency is how many handlers run at a time.
	Concurrency int
	// Batch is how many messages a handler gets at most; 0 for single messages.
	Batch int
	// HandlerTimeout is how long one of them may take, in nanoseconds; 0 for any time.
	HandlerTimeout uint64
	// DrainTimeout is how long the end waits for those that run, in nanoseconds.
	DrainTimeout uint64
	// HasRules says whether anybody asks what an error is.
	HasRules bool
}

// NewOptions reads and checks them.
func NewOptions(given OptionValues) (*Options, error) {
	text, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	bytes, n := lend(text)
	handle, err := valueOf(C.rr_options_new(bytes, n))
	if err != nil {
		return nil, err
	}
	options := &Options{}
	options.own(handle, func(handle uint64) { C.rr_free_options(C.uint64_t(handle)) })
	summary, err := bytesOf(C.rr_options_summary(C.uint64_t(handle)))
	if err == nil {
		r := NewReader(summary)
		options.Concurrency = int(r.Uint32())
		batch, _ := r.OptionalUint32()
		options.Batch = int(batch)
		options.HandlerTimeout, _ = r.OptionalUint64()
		options.DrainTimeout = r.Uint64()
		options.HasRules = r.Bool()
		err = r.End()
	}
	if err != nil {
		options.Free()
		return nil, err
	}
	return options, nil
}

// Policy is a policy, read.
type Policy struct {
	Text    string
	Retries uint32
	Delays  []uint64
}

// ReadPolicy reads a policy; the default one when text is empty.
func ReadPolicy(text string) (Policy, error) {
	var w Writer
	w.OptionalString(text)
	bytes, n := lend(w.B)
	answer, err := bytesOf(C.rr_read_policy(bytes, n))
	if err != nil {
		return Policy{}, err
	}
	r := NewReader(answer)
	policy := Policy{Text: r.String(), Retries: r.Uint32()}
	policy.Delays = make([]uint64, r.Count())
	for i := range policy.Delays {
		policy.Delays[i] = r.Uint64()
	}
	return policy, r.End()
}

// DurationText is a duration as the core and every other language write it.
func DurationText(d time.Duration) string {
	text, err := bytesOf(C.rr_duration_text(C.uint64_t(max(d, 0))))
	if err != nil {
		return d.String()
	}
	return string(text)
}

// Outgoing is a message on its way out. What is empty or nil is not set.
type Outgoing struct {
	Exchange, RoutingKey  string
	Body                  []byte
	Headers               []byte // as AMQP writes them
	Delay, Timeout        *uint64
	Mandatory, Persistent bool
	MessageID             string
	ContentType           string
	ContentEncoding       string
	CorrelationID         string
	ReplyTo               string
	Expiration            *uint64
	Priority              *uint8
	Timestamp             *uint64
	Type, AppID, UserID   string
}

func (o *Outgoing) envelope() []byte {
	var w Writer
	w.String(o.Exchange)
	w.String(o.RoutingKey)
	w.Bool(o.Headers != nil)
	if o.Headers != nil {
		w.Bytes(o.Headers)
	}
	Optional(&w, o.Delay, w.Uint64)
	Optional(&w, o.Timeout, w.Uint64)
	w.Bool(o.Mandatory)
	w.Bool(o.Persistent)
	w.OptionalString(o.MessageID)
	w.OptionalString(o.ContentType)
	w.OptionalString(o.ContentEncoding)
	w.OptionalString(o.CorrelationID)
	w.OptionalString(o.ReplyTo)
	Optional(&w, o.Expiration, w.Uint64)
	Optional(&w, o.Priority, w.Uint8)
	Optional(&w, o.Timestamp, w.Uint64)
	w.OptionalString(o.Type)
	w.OptionalString(o.AppID)
	w.OptionalString(o.UserID)
	return w.B
}
