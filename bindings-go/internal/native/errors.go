package native

import "errors"

// Error is an error of the native half.
type Error struct {
	// Code is the same in every language.
	Code string
	// Message is one sentence for people.
	Message string
	// Detail is what stands behind it; often empty.
	Detail string
}

func (r *Error) Error() string { return r.Message }

// ErrFreed is what a call on an object gives that is gone already.
var ErrFreed = &Error{Code: "closed", Message: "this is already closed"}

var errTooLarge = &Error{Code: "too_large", Message: "more than 2 GiB cannot be handed over"}

var errShort = &Error{Code: "error", Message: "the native half gave an unexpected answer; this is a bug in retryrmq"}

// What a call refused with: the kind of its end, and what it wrote. Every kind but 1 is a panic.
func errorOf(code int, text []byte) error {
	if code != 1 {
		return &Error{
			Code:    "error",
			Message: "the native half failed; this is a bug in retryrmq",
			Detail:  string(text),
		}
	}
	r := NewReader(text)
	r.Int32() // the only kind
	failure := &Error{Code: r.String(), Message: r.String(), Detail: r.String()}
	if err := r.End(); err != nil {
		return err
	}
	return failure
}

// IsCode says whether err is an error of the native half with this code.
func IsCode(err error, code string) bool {
	var failure *Error
	return errors.As(err, &failure) && failure.Code == code
}
