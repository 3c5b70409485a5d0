package native

import "errors"

// Refusal is an error of the native half.
type Refusal struct {
	// Code is the same in every language.
	Code string
	// Message is one sentence for people.
	Message string
	// Detail is what stands behind it; often empty.
	Detail string
}

func (r *Refusal) Error() string { return r.Message }

// ErrFreed is what a call on an object gives that is gone already.
var ErrFreed = &Refusal{Code: "closed", Message: "this is already closed"}

var errTooLarge = &Refusal{Code: "too_large", Message: "more than 2 GiB cannot be handed over"}

var errShort = &Refusal{Code: "error", Message: "the native half gave an unexpected answer; this is a bug in retryrmq"}

// What a call refused with: the kind of its end, and what it wrote. Every kind but 1 is a panic.
func refusalOf(code int, text []byte) error {
	if code != 1 {
		return &Refusal{
			Code:    "error",
			Message: "the native half failed; this is a bug in retryrmq",
			Detail:  string(text),
		}
	}
	r := NewReader(text)
	r.Int32() // the only kind
	refusal := &Refusal{Code: r.String(), Message: r.String(), Detail: r.String()}
	if err := r.End(); err != nil {
		return err
	}
	return refusal
}

// IsCode says whether err is a refusal with this code.
func IsCode(err error, code string) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && refusal.Code == code
}
