package native

/*
#include "shim.h"
*/
import "C"

import "math"

const mostBytes = math.MaxInt32

// Rule is a rule: its text, or its parts.
type Rule struct {
	Text       string
	RoutingKey string
	Headers    [][2]string
	Error      string
	Policy     string
}

// Budget is when to pause. What is nil is the core's to decide.
type Budget struct {
	Failures *float64
	Window   *uint32
	Pause    *uint64
}

// Wanted is what a consumer was told. What is nil is the core's to decide.
type Wanted struct {
	Queue          string
	DLX            *bool
	Retry          string
	Strategy       string
	Rules          []Rule
	Prefetch       *uint16
	Priority       *int32
	Concurrency    *uint32
	HandlerTimeout *uint64
	Park           *bool
	Pause          *Budget
	Declare        *bool
	WorkQueue      *string
	ReservedName   *bool
	DrainTimeout   *uint64
	CrashLimit     *uint32
	DeferLimit     *uint32
	Fatal          bool
}

// Options are the options of a consumer, checked.
type Options struct {
	object
	// Concurrency is how many handlers run at a time.
	Concurrency int
	// HandlerTimeout is how long one of them may take, in nanoseconds; 0 for any time.
	HandlerTimeout uint64
	// DrainTimeout is how long the end waits for those that run, in nanoseconds.
	DrainTimeout uint64
	// HasRules says whether anybody asks what an error is.
	HasRules bool
}

// NewOptions reads and checks them.
func NewOptions(wanted *Wanted) (*Options, error) {
	var w Writer
	w.String(wanted.Queue)
	Optional(&w, wanted.DLX, w.Bool)
	w.OptionalString(wanted.Retry)
	w.OptionalString(wanted.Strategy)
	w.Int32(int32(len(wanted.Rules)))
	for _, rule := range wanted.Rules {
		w.OptionalString(rule.Text)
		w.OptionalString(rule.RoutingKey)
		w.Int32(int32(len(rule.Headers)))
		for _, header := range rule.Headers {
			w.String(header[0])
			w.String(header[1])
		}
		w.OptionalString(rule.Error)
		w.String(rule.Policy)
	}
	Optional(&w, wanted.Prefetch, w.Uint16)
	Optional(&w, wanted.Priority, w.Int32)
	Optional(&w, wanted.Concurrency, w.Uint32)
	Optional(&w, wanted.HandlerTimeout, w.Uint64)
	Optional(&w, wanted.Park, w.Bool)
	Optional(&w, wanted.Pause, func(budget Budget) {
		Optional(&w, budget.Failures, w.Float64)
		Optional(&w, budget.Window, w.Uint32)
		Optional(&w, budget.Pause, w.Uint64)
	})
	Optional(&w, wanted.Declare, w.Bool)
	Optional(&w, wanted.WorkQueue, w.String)
	Optional(&w, wanted.ReservedName, w.Bool)
	Optional(&w, wanted.DrainTimeout, w.Uint64)
	Optional(&w, wanted.CrashLimit, w.Uint32)
	Optional(&w, wanted.DeferLimit, w.Uint32)
	w.Bool(wanted.Fatal)

	bytes, n := lent(w.B)
	handle, err := valueOf(C.rr_options_new(bytes, n))
	if err != nil {
		return nil, err
	}
	options := &Options{}
	options.own(handle, func(handle uint64) { C.rr_free_options(C.uint64_t(handle)) })
	shape, err := bytesOf(C.rr_options_shape(C.uint64_t(handle)))
	if err == nil {
		r := NewReader(shape)
		options.Concurrency = int(r.Uint32())
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
	bytes, n := lent(w.B)
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

// Outgoing is a message on its way out. What is empty or nil is not set.
type Outgoing struct {
	Exchange, RoutingKey  string
	Body                  []byte
	Headers               []byte // as AMQP writes them
	Delay                 *uint64
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
