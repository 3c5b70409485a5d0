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

// A handler's error that says what is to become of the message.
type signal interface {
	error
	end(*native.Ending)
	// What went wrong; nil for those that are all there is to say.
	cause() error
}

type after struct {
	err   error
	delay time.Duration
}

// After is err with a delay: the attempt failed, and the message comes back in d, whatever the policy says. It counts as a
// retry. It works through any wrapping, and errors.Is and errors.As see err through it.
//
// After(nil, d) is nil, and nil ACKNOWLEDGES the message, so that After(ship(m), d) may be returned as it is. To have a message
// come back without an error of your own, give it one, After(errors.New("busy"), d), or use [Defer].
//
// Of a delay below a millisecond that is not 0, such as After(err, 5), the unit was left out: the policy decides, and the error says so.
// One that is computed, such as time.Until(then), may be so short; max(time.Until(then), time.Millisecond) is not.
func After(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &after{err, d}
}

func (a *after) Error() string { return a.err.Error() }
func (a *after) Unwrap() error { return a.err }
func (a *after) cause() error  { return a.err }

func (a *after) end(ending *native.Ending) {
	ending.What = native.Retry
	delay := uint64(max(a.delay, 0))
	ending.Delay = &delay
}

type permanent struct{ err error }

// Permanent is err, marked as one that no retry can mend: the message is parked at once, as fatal.
//
// Permanent(nil) is nil, and nil ACKNOWLEDGES the message. To park one without an error, use [Park].
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanent{err}
}

func (p *permanent) Error() string             { return p.err.Error() }
func (p *permanent) Unwrap() error             { return p.err }
func (p *permanent) cause() error              { return p.err }
func (p *permanent) end(ending *native.Ending) { ending.What = native.Fatal }

type deferral struct{ delay time.Duration }

// Defer says: not now. The message comes back in d, and no attempt is spent. It is never nil, and neither is what Park gives. Below a
// millisecond d is treated as that of [After]: a failed attempt, except without [DLX], where only the log says so.
func Defer(d time.Duration) error { return &deferral{d} }

func (d *deferral) Error() string { return fmt.Sprintf("deferred for %v", d.delay) }
func (d *deferral) cause() error  { return nil }

func (d *deferral) end(ending *native.Ending) {
	ending.What = native.Defer
	delay := uint64(max(d.delay, 0))
	ending.Delay = &delay
}

type parking struct{ reason string }

// Park gives the message up: it is parked now, with this reason for people to read.
func Park(reason string) error { return &parking{reason} }

func (p *parking) Error() string             { return p.reason }
func (p *parking) cause() error              { return nil }
func (p *parking) end(ending *native.Ending) { ending.What = native.Park }

// What decides about a failed attempt: the options of its consumer.
type judge struct {
	fatal []func(error) bool
	// Whether anybody asks what an error is.
	kinds bool
	dlx   bool
	log   *journal
}

func newJudge(plan *plan, options *native.Options, log *journal) judge {
	return judge{fatal: plan.fatal, kinds: options.HasRules, dlx: plan.given["dlx"] != nil, log: log}
}

// The end of an attempt that returned err. A signal counts wherever it stands in the chain; of several, the outermost.
//
// Everything that err is asked here runs people's code, which may panic: it is enough that err is a nil pointer. What cannot be
// had then is left out, and the rest is said all the same.
//
// Only a parked message keeps a stack, so that it is not worked out for one that cannot be parked.
func (j *judge) ending(err error, mayPark bool) *native.Ending {
	ending := &native.Ending{What: native.Retry}
	subject := err
	all, ends := unwrapped(err)
	found := signalIn(all)
	var bare *Error
	switch {
	case found != nil:
		found.end(ending)
		bare = j.bareDelay(ending)
		if ending.What == native.Defer {
			return ending
		}
		if err == error(found) {
			subject = found.cause()
		}
	case !ends && len(j.fatal) > 0:
		j.log.say(slog.LevelError, "retryrmq: an error wraps errors without end; the functions of Fatal are not asked, since errors.Is and "+
			"errors.As would never return", "error", short(text(err)))
	case j.isFatal(err):
		ending.What = native.Fatal
	}
	ending.Error = valid(text(err))
	if reason, ok := found.(*parking); ok {
		ending.Error = valid(reason.reason) // what wraps it is in the stack
	}
	if bare != nil {
		ending.Error += "; " + bare.Message
	}
	if subject != nil && (found == nil || found.cause() != nil) {
		names := typeNames(subject)
		ending.ErrorType = names[0]
		if j.kinds {
			ending.Kinds = names[1:]
		}
	}
	if mayPark || ending.What != native.Retry {
		ending.Stack = valid(chain(err))
	}
	return ending
}

// What is wrong with the delay that a handler chose, if its unit was left out. Then it is none: the attempt has failed, and the policy
// decides. Except that without DLX a failure may drop the message, and a deferral does not.
func (j *judge) bareDelay(ending *native.Ending) *Error {
	if ending.Delay == nil || !isBare(time.Duration(*ending.Delay)) {
		return nil
	}
	what := map[uint8]string{native.Retry: "After", native.Defer: "Defer"}[ending.What]
	bare := bareNumber("the delay of "+what, time.Duration(*ending.Delay))
	if ending.What == native.Defer && !j.dlx {
		j.log.say(slog.LevelError, "retryrmq: "+bare.Message)
		return nil
	}
	ending.What, ending.Delay = native.Retry, nil
	return bare
}

// The outermost signal, as errors.As would find it.
func signalIn(all []error) (found signal) {
	for _, err := range all {
		if said, ok := err.(signal); ok {
			return said
		}
		if as, ok := err.(interface{ As(any) bool }); ok {
			said := false
			if safely(func() { said = as.As(&found) }) == nil && said && found != nil {
				return found
			}
			found = nil
		}
	}
	return nil
}

// Whether one of the functions of [Fatal] says so. One that panics says nothing.
func (j *judge) isFatal(err error) (yes bool) {
	for _, says := range j.fatal {
		if gone := safely(func() { yes = says(err) }); gone != nil {
			j.log.say(slog.LevelError, "retryrmq: the function of Fatal panicked; the error counts as one that is not fatal",
				"panic", short(gone.text()), "error", short(text(err)), "stack", gone.stack)
		} else if yes {
			return true
		}
	}
	return false
}

// Hands an ending over. One that the native half cannot read would leave its message with the consumer for ever: a plain
// failure goes instead.
func settle(m *Message, ending *native.Ending, hand func(uint64, *native.Ending) error, log *journal) {
	refused := hand(m.token, ending)
	if refused == nil {
		return
	}
	plain := &native.Ending{What: native.Retry, Error: "the error of the handler could not be handed over", ErrorType: plainType}
	again := hand(m.token, plain)
	log.say(slog.LevelError, "retryrmq: what a handler returned could not be handed over; it counts as a failed attempt",
		"message", m, "reason", refused)
	if again != nil {
		log.say(slog.LevelError, "retryrmq: a message could not be settled; it comes again after the consumer's end",
			"message", m, "reason", again)
	}
}

// What it says; people's Error methods may do anything.
func text(err error) (said string) {
	if safely(func() { said = err.Error() }) != nil {
		return fmt.Sprintf("<the text of %T cannot be had: its Error method panics>", err)
	}
	if said == "" {
		said = typeName(reflect.TypeOf(err))
	}
	return said
}

// ErrorTyper is an error that names its own type, for rules and for the record of a parked message. Others go by the name
// of their Go type.
type ErrorTyper interface {
	error
	// ErrorType is the name, such as "NotFound"; with an empty one, the error goes by its Go type.
	ErrorType() string
}

// The names of what err is and wraps: first the one that says most, then all, also with their packages.
func typeNames(err error) []string {
	var all, telling []string
	for _, err := range asMany(err) {
		if timesOut(err) {
			all = append(all, "TimeoutError") // as Python calls it, so that one rule does for all languages
		}
		if name := ownName(err); name != "" {
			telling = append(telling, name)
			continue
		}
		t := reflect.TypeOf(err)
		name := typeName(t)
		if isWrapper(err) {
			continue
		}
		if tells(t) {
			telling = append(telling, name)
		}
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		all = append(all, t.String())
	}
	first := plainType
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
		_ = safely(func() { yes = timeout.Timeout() })
	}
	return yes
}

// The type of an error that has none of its own, in every language.
const plainType = "Error"

// The name that err gives its type; empty if it gives none.
func ownName(err error) (name string) {
	if typer, ok := err.(ErrorTyper); ok {
		_ = safely(func() { name = typer.ErrorType() })
	}
	return name
}

const (
	// Who is wrapped deeper than this is wrapped without end.
	deepestWrapped = 1000
	// The most errors that are searched for a signal.
	mostWrapped = 100_000
	// And so many are named and shown.
	mostNamed = 100
)

// err and everything that it wraps, outermost first, and whether that comes to an end: an error may wrap itself.
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
		_ = safely(func() {
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

// Those of them that are worth a name.
func asMany(err error) []error {
	all, _ := unwrapped(err)
	return all[:min(len(all), mostNamed)]
}

func isWrapper(err error) bool {
	_, ok := err.(signal)
	return ok
}

var errorString = reflect.TypeOf(errors.New(""))

// Whether a type's name says anything: those that errors.New, fmt.Errorf and errors.Join make do not.
func tells(t reflect.Type) bool {
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
	for _, err := range asMany(err) {
		if p, ok := err.(*panicked); ok {
			stack = p.stack
		}
		lines = append(lines, fmt.Sprintf("%T: %s", err, text(err)))
	}
	if stack != "" {
		return lines[0] + "\n\n" + stack
	}
	return strings.Join(lines, "\nwraps ")
}

// The native half takes texts to be UTF-8, unseen.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
