package retryrmq

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// An error of a handler that decides what happens to the message.
type signal interface {
	error
	end(*native.End)
	// The failure behind it; nil if there is none.
	cause() error
}

type after struct {
	err   error
	delay time.Duration
}

// After returns err with a delay: the attempt failed; retry after d, whatever the policy's delay is. It counts as a retry; if no retries are
// left, the message is parked. Without [DLX] the message is rejected. It may be wrapped, and errors.Is and errors.As find err in it.
//
// After(nil, d) is nil, and nil ACKNOWLEDGES the message, so After(ship(m), d) may be returned directly. To retry without an error of your own,
// make one, as in After(errors.New("busy"), d), or use [Defer].
//
// A delay shorter than a millisecond and not 0, such as After(err, 5), has no unit: then the policy decides on the delay, and the error says
// so. A computed delay, such as time.Until(then), can be that short; use max(time.Until(then), time.Millisecond).
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &after{err, d}
}

func (a *after) Error() string { return a.err.Error() }
func (a *after) Unwrap() error { return a.err }
func (a *after) cause() error  { return a.err }

func (a *after) end(end *native.End) {
	end.What = native.Retry
	delay := uint64(max(a.delay, 0))
	end.Delay = &delay
}

type permanent struct{ err error }

// Permanent marks err as one that no retry can fix ("fatal" in the other languages): the message is parked at once as fatal. Without [DLX] it is
// rejected.
//
// Permanent(nil) is nil, and nil ACKNOWLEDGES the message. To park one without an error, use [Park].
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

func (p *permanent) Error() string       { return p.err.Error() }
func (p *permanent) Unwrap() error       { return p.err }
func (p *permanent) cause() error        { return p.err }
func (p *permanent) end(end *native.End) { end.What = native.Fatal }

type undecodable struct{ err error }

// Undecodable marks err as one of a body that the handler cannot read: the message is parked at once as undecodable. Without [DLX] it is rejected.
// [Handle] uses it; a handler with a decoder of its own returns it itself.
//
// Undecodable(nil) is nil, and nil ACKNOWLEDGES the message.
func Undecodable(err error) error {
	if err == nil {
		return nil
	}
	return &undecodable{err}
}

func (u *undecodable) Error() string       { return u.err.Error() }
func (u *undecodable) Unwrap() error       { return u.err }
func (u *undecodable) cause() error        { return u.err }
func (u *undecodable) end(end *native.End) { end.What = native.Undecodable }

type deferral struct{ delay time.Duration }

// Defer returns an error that defers the message: it is delivered again after d, and uses up no attempt. After [DeferLimit] deferrals it is
// parked as exhausted. Without [DLX] the consumer holds the message for at most a minute, then publishes a copy to the tail of its queue; after
// [DeferLimit] deferrals it is rejected. The error is never nil.
//
// A d shorter than a millisecond and not 0 has no unit: then the attempt has failed. Without [DLX] it is only logged.
func Defer(d time.Duration) error { return &deferral{d} }

func (d *deferral) Error() string { return "deferred for " + native.DurationText(d.delay) }
func (d *deferral) cause() error  { return nil }

func (d *deferral) end(end *native.End) {
	end.What = native.Defer
	delay := uint64(max(d.delay, 0))
	end.Delay = &delay
}

type parking struct{ reason string }

// Park returns an error that parks the message now as requested. The reason is written into its record, for people to read. Without [DLX] the
// message is rejected. The error is never nil.
func Park(reason string) error { return &parking{reason} }

func (p *parking) Error() string       { return p.reason }
func (p *parking) cause() error        { return nil }
func (p *parking) end(end *native.End) { end.What = native.Park }

// Outcome is what a handler decided with what it returned. The consumer decides what follows: a message that is to be retried may be parked, because
// no retries are left.
type Outcome string

// The outcomes.
const (
	// OutcomeAck is that of nil: the message is acknowledged.
	OutcomeAck Outcome = "ack"
	// OutcomeRetry is that of an error, and of [After]: the attempt failed.
	OutcomeRetry Outcome = "retry"
	// OutcomeDefer is that of [Defer]. It is no failure.
	OutcomeDefer Outcome = "defer"
	// OutcomePark is that of [Park].
	OutcomePark Outcome = "park"
	// OutcomeFatal is that of [Permanent].
	OutcomeFatal Outcome = "fatal"
	// OutcomeUndecodable is that of [Undecodable], and of a body that [Handle] cannot read.
	OutcomeUndecodable Outcome = "undecodable"
)

var outcomes = map[uint8]Outcome{
	native.Ack: OutcomeAck, native.Retry: OutcomeRetry, native.Defer: OutcomeDefer, native.Park: OutcomePark, native.Fatal: OutcomeFatal,
	native.Undecodable: OutcomeUndecodable,
}

// OutcomeOf returns what err, the error of a handler or nil, decides, for a [Middleware]. Functions of [Fatal] are not asked.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return OutcomeAck
	}
	end := native.End{What: native.Retry}
	all, _ := unwrapped(err)
	if found := signalIn(all); found != nil {
		found.end(&end)
	}
	return outcomes[end.What]
}

// ErrorTypeOf returns the type of err, the error of a handler, as the record of a parked message has it: see [ErrorTyper]. It is "Error" for an error
// without a type of its own, and empty for nil, [Defer] and [Park].
func ErrorTypeOf(err error) string {
	all, _ := unwrapped(err)
	if subject := failure(err, signalIn(all)); subject != nil {
		return typeNames(subject)[0]
	}
	return ""
}

// The error that is the failure, where found is the signal in err or nil; nil if there is none.
func failure(err error, found signal) error {
	switch {
	case found == nil:
		return err
	case found.cause() == nil:
		return nil
	case err == error(found):
		return found.cause()
	}
	return err
}

// What decides about a failed attempt: the options of its consumer.
type errorClassifier struct {
	fatal []func(error) bool
	// Whether rules need the types of an error.
	kinds bool
	dlx   bool
	log   *asyncLogger
	// Lines that wait until the messages are settled; nil to log them at once.
	deferredLines *[]logLine
}

// Logs, or has it logged once the messages are settled.
func (j *errorClassifier) report(level slog.Level, message string, attributes ...any) {
	if j.deferredLines == nil {
		j.log.log(level, message, attributes...)
		return
	}
	*j.deferredLines = append(*j.deferredLines, logLine{level, message, attributes})
}

func newErrorClassifier(plan *plan, options *native.Options, log *asyncLogger) errorClassifier {
	return errorClassifier{fatal: plan.fatal, kinds: options.HasRules, dlx: plan.given["dlx"] == true, log: log}
}

// The end of an attempt at m that returned err. A signal may stand anywhere in the chain; the outermost one decides.
//
// Every method of err is user code and may panic, for example because err is a nil pointer. Whatever cannot be read then is left out.
//
// Only a parked message keeps a stack, so none is made for a message that cannot be parked.
func (j *errorClassifier) classify(err error, m *Message) *native.End {
	end := &native.End{What: native.Retry}
	all, ends := unwrapped(err)
	found := signalIn(all)
	var bare *Error
	switch {
	case found != nil:
		found.end(end)
		bare = j.unitlessDelay(end, m)
		if end.What == native.Defer {
			return end
		}
	case !ends && len(j.fatal) > 0:
		j.report(slog.LevelError, "retryrmq: an error wraps errors without end; the functions of Fatal are not asked, since errors.Is and "+
			"errors.As would never return", about(m, "error", short(text(err)))...)
	case j.isFatal(err, m):
		end.What = native.Fatal
	}
	end.Error = valid(text(err))
	if reason, ok := found.(*parking); ok {
		end.Error = valid(reason.reason) // what wraps it is in the stack
	}
	if bare != nil {
		end.Error += "; " + bare.Message
	}
	if subject := failure(err, found); subject != nil {
		names := typeNames(subject)
		end.ErrorType = names[0]
		if j.kinds {
			end.Kinds = names[1:]
		}
	}
	if m.mayPark || end.What != native.Retry {
		end.Stack = valid(chain(err))
	}
	return end
}

// The error for a chosen delay without a unit. Then the attempt has failed, and the policy decides on the delay. Without DLX a failure may drop
// the message, so a deferral stays a deferral.
func (j *errorClassifier) unitlessDelay(end *native.End, m *Message) *Error {
	if end.Delay == nil || !isUnitless(time.Duration(*end.Delay)) {
		return nil
	}
	what := map[uint8]string{native.Retry: "After", native.Defer: "Defer"}[end.What]
	bare := unitlessError("the delay of "+what, time.Duration(*end.Delay))
	if end.What == native.Defer && !j.dlx {
		j.report(slog.LevelError, "retryrmq: "+bare.Message, about(m)...)
		return nil
	}
	end.What, end.Delay = native.Retry, nil
	return bare
}

// The outermost signal, found as errors.As would.
func signalIn(all []error) (found signal) {
	for _, err := range all {
		if said, ok := err.(signal); ok {
			return said
		}
		if as, ok := err.(interface{ As(any) bool }); ok {
			said := false
			if catchPanic(func() { said = as.As(&found) }) == nil && said && found != nil {
				return found
			}
			found = nil
		}
	}
	return nil
}

// Whether one of the functions of [Fatal] returns true. One that panics decides nothing.
func (j *errorClassifier) isFatal(err error, m *Message) (yes bool) {
	for _, matches := range j.fatal {
		if panicked := catchPanic(func() { yes = matches(err) }); panicked != nil {
			j.report(slog.LevelError, "retryrmq: the function of Fatal panicked; the error counts as one that is not fatal",
				about(m, "panic", short(panicked.text()), "error", short(text(err)), "stack", panicked.stack)...)
		} else if yes {
			return true
		}
	}
	return false
}

// Passes an end to the native half, and returns lines for the log. If the native half cannot read it, a plain failure is sent instead; otherwise
// the message would stay unsettled.
func settle(m *Message, end *native.End, hand func(uint64, *native.End) error) (lines []logLine) {
	refused := hand(m.token, end)
	if refused == nil {
		return nil
	}
	plain := &native.End{What: native.Retry, Error: "the error of the handler could not be handed over", ErrorType: defaultErrorType}
	again := hand(m.token, plain)
	lines = append(lines, logLine{slog.LevelError, "retryrmq: what a handler returned could not be handed over; it counts as a failed attempt",
		about(m, "error", refused)})
	if again != nil {
		lines = append(lines, logLine{slog.LevelError, "retryrmq: a message could not be settled; it is redelivered after the consumer's end",
			about(m, "error", again)})
	}
	return lines
}

// The text of an error. A user's Error method may panic.
func text(err error) (said string) {
	if catchPanic(func() { said = err.Error() }) != nil {
		return fmt.Sprintf("<no error text: the Error method of %T panics>", err)
	}
	if said == "" {
		said = typeName(reflect.TypeOf(err))
	}
	return said
}

// ErrorTyper is an error that names its own type, for rules and for the record of a parked message. Other errors have the name of their Go
// type.
type ErrorTyper interface {
	error
	// ErrorType returns the name, such as "NotFound". If it is empty, the name of the Go type is used.
	ErrorType() string
}

// The names of err and of the errors it wraps: first the most telling one, then all, also with their packages.
func typeNames(err error) []string {
	var all, telling []string
	for _, err := range shownErrors(err) {
		if timesOut(err) {
			all = append(all, "TimeoutError") // Python's name, so that one rule works in all languages
		}
		if name := declaredName(err); name != "" {
			telling = append(telling, name)
			continue
		}
		t := reflect.TypeOf(err)
		name := typeName(t)
		if isWrapper(err) {
			continue
		}
		if isTelling(t) {
			telling = append(telling, name)
		}
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		all = append(all, t.String())
	}
	first := defaultErrorType
	if len(telling) > 0 {
		first = telling[0]
	}
	names := append(append([]string{first}, telling...), all...)
	for i, name := range names {
		names[i] = valid(name)
	}
	return names
}

func timesOut(err error) (yes bool) {
	if timeout, ok := err.(interface{ Timeout() bool }); ok {
		_ = catchPanic(func() { yes = timeout.Timeout() })
	}
	return yes
}

// The type of an error that has none of its own, in every language.
const defaultErrorType = "Error"

// The name that err gives its type; empty if it gives none.
func declaredName(err error) (name string) {
	if typer, ok := err.(ErrorTyper); ok {
		_ = catchPanic(func() { name = typer.ErrorType() })
	}
	return name
}

const (
	// An error that is wrapped deeper than this is taken to wrap itself.
	deepestWrapped = 1000
	// The most errors that are searched for a signal.
	mostWrapped = 100_000
	// The most errors that are named and shown.
	mostNamed = 100
)

// err and everything that it wraps, outermost first, and whether that is all: an error may wrap itself.
func unwrapped(err error) (all []error, ends bool) {
	var walk func(err error, depth int) bool
	walk = func(err error, depth int) bool {
		if err == nil {
			return true
		}
		if depth > deepestWrapped || len(all) >= mostWrapped {
			return false
		}
		all = append(all, err)
		var wrapped []error
		_ = catchPanic(func() {
			switch wrapper := err.(type) {
			case interface{ Unwrap() error }:
				wrapped = []error{wrapper.Unwrap()}
			case interface{ Unwrap() []error }:
				wrapped = wrapper.Unwrap()
			}
		})
		for _, one := range wrapped {
			if !walk(one, depth+1) {
				return false
			}
		}
		return true
	}
	ends = walk(err, 0)
	return all, ends
}

// The errors that are named and shown.
func shownErrors(err error) []error {
	all, _ := unwrapped(err)
	return all[:min(len(all), mostNamed)]
}

func isWrapper(err error) bool {
	_, ok := err.(signal)
	return ok
}

var errorString = reflect.TypeOf(errors.New(""))

// Whether a type's name is useful: those of errors.New, fmt.Errorf and errors.Join are not.
func isTelling(t reflect.Type) bool {
	if t == errorString {
		return false
	}
	switch t.String() {
	case "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError":
		return false
	}
	return true
}

func typeName(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if name := t.Name(); name != "" {
		return name
	}
	return t.String()
}

// The stack of a panic, or the chain of causes, one line each.
func chain(err error) string {
	var lines []string
	var stack string
	for _, err := range shownErrors(err) {
		if p, ok := err.(*panicError); ok {
			stack = p.stack
		}
		lines = append(lines, fmt.Sprintf("%T: %s", err, text(err)))
	}
	if stack != "" {
		return lines[0] + "\n\n" + stack
	}
	return strings.Join(lines, "\nwraps ")
}

// The native half does not check that texts are UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
