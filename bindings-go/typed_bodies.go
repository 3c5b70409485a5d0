package retryrmq

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// HandleOption is an option of [Handle].
type HandleOption func(*decoding)

type decoding struct {
	retries bool
	// Whether the type can hold null.
	nullable bool
}

// RetryInvalidBody retries a message whose body is invalid, instead of parking it at once: for programs that may learn to read it, such as one that is
// deployed before its publisher.
func RetryInvalidBody() HandleOption { return func(d *decoding) { d.retries = true } }

// Handle returns a handler that gets the body of a message as a T, read by encoding/json.
//
//	type Order struct {
//		Item  string
//		Total float64
//	}
//
//	func (o Order) Validate() error {
//		if o.Total < 0 {
//			return errors.New("Total is negative")
//		}
//		return nil
//	}
//
//	err := conn.Consume(ctx, "orders", retryrmq.Handle(func(ctx context.Context, o Order, m *retryrmq.Message) error {
//		return ship(ctx, o)
//	}), retryrmq.DLX())
//
// If T, or *T, has a method Validate() error, it is called with what was read. null is read only into a T that can hold it: a map, a slice, an
// interface, or a type with a method UnmarshalJSON. Fields that T does not have are ignored.
//
// A body that is not UTF-8 cannot be read. JSON has no bytes, so T must not be []byte: then f is not called, and every attempt fails with an
// [ErrInvalidOption], which is retried like any other error. For the text of the JSON take a json.RawMessage, for other bytes a [Handler], which has
// them in m.Body.
//
// If the body cannot be read, or Validate returns an error, f is not called, and the message is parked at once as undecodable; without [DLX] it is
// rejected. With [RetryInvalidBody] the attempt has failed instead, and the message is retried. The error says which field is wrong, and does not
// quote values of the body. What Validate and methods such as UnmarshalJSON say is kept as it is. The type of the error is that of encoding/json
// (SyntaxError, UnmarshalTypeError) or of Validate, and ValidationError if it has none of its own. An error of Validate that is made by [After],
// [Permanent], [Defer] or [Park] decides itself.
func Handle[T any](f func(ctx context.Context, body T, m *Message) error, options ...HandleOption) Handler {
	if f == nil {
		return nil // Consume refuses it
	}
	d := decoding{nullable: holdsNull(reflect.TypeFor[T]())}
	for _, option := range options {
		option(&d)
	}
	if isBytes(reflect.TypeFor[T]()) {
		// Not undecodable: the program is wrong, and the messages are not.
		wrong := invalidOption("`Handle` cannot read a body as %v: JSON has no bytes; take a json.RawMessage for the text of the JSON, or a plain Handler, "+
			"which has the bytes in m.Body", reflect.TypeFor[T]())
		return func(context.Context, *Message) error { return wrong }
	}
	return func(ctx context.Context, m *Message) error {
		var body T
		err := decode(m.Body, &body, d.nullable)
		switch {
		case err == nil:
			return f(ctx, body, m)
		case d.retries:
			return err
		}
		if all, _ := unwrapped(err); signalIn(all) != nil {
			return err
		}
		return Undecodable(err)
	}
}

func decode[T any](text []byte, body *T, nullable bool) error {
	// encoding/json would replace what is not UTF-8.
	if !utf8.Valid(text) {
		return &invalid{errors.New("the body is not UTF-8")}
	}
	if !nullable && bytes.Equal(bytes.TrimSpace(text), []byte("null")) {
		return &invalid{errors.New("the body is null")}
	}
	if err := json.Unmarshal(text, body); err != nil {
		return &invalid{withoutValues(err)}
	}
	validates, ok := any(body).(validator)
	if !ok {
		validates, ok = any(*body).(validator) // a pointer or an interface
	}
	if ok {
		if err := validates.Validate(); err != nil {
			return &invalid{err}
		}
	}
	return nil
}

type validator interface{ Validate() error }

// Whether null is a value of a type. A pointer could be nil as well, but a handler that gets an *Order wants an order.
func holdsNull(t reflect.Type) bool {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return true
	}
	return t.Kind() == reflect.Map || t.Kind() == reflect.Slice || t.Kind() == reflect.Interface
}

// Whether encoding/json reads a type from a JSON string in base64, which nobody means who asks for the bytes of a body.
func isBytes(t reflect.Type) bool {
	pointer := reflect.PointerTo(t)
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 &&
		!pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) && !pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// The error of a body that cannot be read. Its type is that of the error in it, if that has one.
type invalid struct{ err error }

func (i *invalid) Error() string { return i.err.Error() }
func (i *invalid) Unwrap() error { return i.err }

func (i *invalid) ErrorType() string {
	if name := typeNames(i.err)[0]; name != defaultErrorType {
		return name
	}
	return "ValidationError"
}

// The error of encoding/json without what the body contains: records of messages are read by more people than their bodies.
func withoutValues(err error) error {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	var when *time.ParseError
	switch {
	case errors.As(err, &syntax) && syntax.Offset > 0:
		return fmt.Errorf("%w at byte %d", syntax, syntax.Offset)
	case errors.As(err, &mismatch):
		masked := *mismatch
		masked.Value, _, _ = strings.Cut(mismatch.Value, " ") // of "number 4711", the number
		return &masked
	case errors.As(err, &when):
		masked := *when
		masked.Value, masked.ValueElem = "...", "..."
		masked.Message, _, _ = strings.Cut(when.Message, ": \"") // of `: extra text: "4711"`, what is quoted
		return &masked
	}
	// What a `,string` tag or a json.Number refuses is quoted, and the error has no type.
	if before, rest, quotes := strings.Cut(err.Error(), ", trying to unmarshal \""); quotes && strings.HasPrefix(before, "json: ") {
		return fmt.Errorf("%s%s", before, rest[strings.LastIndex(rest, "\"")+1:])
	}
	return err
}
