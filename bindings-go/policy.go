package retryrmq

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Policy says when a failed message is tried again, and when it is parked instead. Its methods give changed copies:
//
//	retryrmq.Exponential(time.Second, 5*time.Minute).Retries(8).Jitter(0.2)
//
// What is not given is the library's default, the same in every language: Policy{}.Retries(3) is the default policy with three
// retries. Times are rounded up to milliseconds; in one that is shorter, as in Fixed(5), the unit was left out. A policy that cannot
// work is refused by [Conn.Consume], or by [Policy.Check].
type Policy struct {
	text   string // as it was parsed; then the rest is empty
	shape  string
	delays []time.Duration
	named  []setting
}

// A part of a policy that has a name.
type setting struct {
	name, value string
	// What it was written as, if it is a duration.
	span time.Duration
}

func (s setting) String() string { return s.name + "=" + s.value }

// Fixed waits equally long each time.
func Fixed(delay time.Duration) Policy { return Policy{shape: "fixed", delays: []time.Duration{delay}} }

// Linear waits step longer each time; a zero stands for the default, a second.
func Linear(first, step time.Duration) Policy {
	policy := Policy{shape: "linear", delays: []time.Duration{first}}
	if step == 0 {
		return policy
	}
	return policy.lasting("step", step)
}

// List waits these times, one after the other; there are as many retries unless Retries says otherwise.
func List(delays ...time.Duration) Policy {
	return Policy{shape: "list", delays: append([]time.Duration(nil), delays...)}
}

// Exponential waits four times as long each time, unless Factor says otherwise, and most at most, which must not be less than
// first.
func Exponential(first, most time.Duration) Policy {
	return Policy{shape: "exponential", delays: []time.Duration{first}}.lasting("max", most)
}

// ParsePolicy reads a policy's text, the same in every language, such as
//
//	exponential(1s, factor=4, max=5m, retries=5, jitter=0.2)
func ParsePolicy(text string) (Policy, error) {
	if text == "" {
		// The zero Policy is the default, which nobody meant who reads one from somewhere.
		return Policy{}, &Error{Code: ErrInvalidPolicy.Code, Message: "the retry policy is empty; leave it out for the default"}
	}
	policy := Policy{text: text}
	return policy, policy.Check()
}

// Retries is how many retries there are before the message is parked; attempts are one more.
func (p Policy) Retries(n int) Policy { return p.with("retries", strconv.Itoa(n)) }

// Factor is by how much the delay of an exponential policy grows.
func (p Policy) Factor(factor float64) Policy {
	return p.with("factor", strconv.FormatFloat(factor, 'g', -1, 64))
}

// Max is the longest delay of a linear policy.
func (p Policy) Max(most time.Duration) Policy { return p.lasting("max", most) }

// Jitter spreads each delay by this share, 0 to 0.9; 0.2 is up to a fifth earlier.
func (p Policy) Jitter(share float64) Policy {
	return p.with("jitter", strconv.FormatFloat(share, 'g', -1, 64))
}

// MaxAge parks a message whose next attempt would come later than this after its first failure.
func (p Policy) MaxAge(age time.Duration) Policy { return p.lasting("max_age", age) }

// AgeFromPublication counts MaxAge from the message's timestamp, where its publisher set one.
func (p Policy) AgeFromPublication() Policy { return p.with("age_from", "published") }

// Check says what is wrong with it, if anything is.
func (p Policy) Check() error {
	_, err := p.read()
	return err
}

// Delays are the delays of its retries, the first thousand; none if it cannot be read.
func (p Policy) Delays() []time.Duration {
	read, err := p.read()
	if err != nil {
		return nil
	}
	delays := make([]time.Duration, len(read.Delays))
	for i, delay := range read.Delays {
		delays[i] = time.Duration(delay)
	}
	return delays
}

// String is its text in full, as every language reads it.
func (p Policy) String() string {
	read, err := p.read()
	if err != nil {
		return p.written()
	}
	return read.Text
}

func (p Policy) read() (native.Policy, error) {
	if err := p.checkSpans(); err != nil {
		return native.Policy{}, err
	}
	text := p.written()
	if err := checkText("Retry", text); err != nil {
		return native.Policy{}, err
	}
	read, err := native.ReadPolicy(text) // an empty text is the default policy
	return read, ours(err)
}

// The zero policy is the default one.
func (p Policy) isZero() bool { return p.shape == "" && p.text == "" && p.named == nil }

// Whether a unit was left out, which rounding up would hide.
func (p Policy) checkSpans() error {
	bare := func(what string, d time.Duration) error {
		err := bareNumber(what, d)
		err.Code = ErrInvalidPolicy.Code
		return err
	}
	for _, delay := range p.delays {
		if isBare(delay) {
			return bare("a delay of the policy `"+p.shape+"`", delay)
		}
	}
	for _, part := range p.named {
		if isBare(part.span) {
			return bare("`"+part.name+"` of the retry policy", part.span)
		}
	}
	return nil
}

func (p Policy) with(name, value string) Policy { return p.set(setting{name: name, value: value}) }

func (p Policy) lasting(name string, span time.Duration) Policy {
	return p.set(setting{name, milliseconds(span), span})
}

func (p Policy) set(part setting) Policy {
	named := make([]setting, 0, len(p.named)+1)
	for _, entry := range p.named {
		if entry.name != part.name {
			named = append(named, entry)
		}
	}
	p.named = append(named, part)
	return p
}

// The text for the native half: what was parsed with what was added, or all from the parts.
func (p Policy) written() string {
	if p.shape == "" {
		if p.text == "" && p.named != nil {
			p.text = Policy{}.String() // what is not said is the default's
		}
		shape, inner, opened := strings.Cut(strings.TrimSpace(p.text), "(")
		inner, closed := strings.CutSuffix(inner, ")")
		if !opened || !closed || len(p.named) == 0 {
			return p.text
		}
		parts := slices.DeleteFunc(strings.Split(inner, ","), p.saysAgain)
		for i, part := range parts {
			parts[i] = strings.TrimSpace(part)
		}
		return p.joined(shape, parts)
	}
	parts := make([]string, 0, len(p.delays)+len(p.named))
	for _, delay := range p.delays {
		parts = append(parts, milliseconds(delay))
	}
	return p.joined(p.shape, parts)
}

func (p Policy) joined(shape string, parts []string) string {
	for _, part := range p.named {
		parts = append(parts, part.String())
	}
	return fmt.Sprintf("%s(%s)", shape, strings.Join(parts, ", "))
}

// Whether a method has replaced this part of the text that was parsed.
func (p Policy) saysAgain(part string) bool {
	name, _, named := strings.Cut(part, "=")
	return named && slices.ContainsFunc(p.named, func(entry setting) bool { return entry.name == strings.TrimSpace(name) })
}

// In whole milliseconds, since nothing waits more exactly; up, since nothing is early.
func milliseconds(d time.Duration) string {
	whole := d / time.Millisecond
	if whole*time.Millisecond < d {
		whole++
	}
	return strconv.FormatInt(int64(whole), 10) + "ms"
}

// Rule chooses another policy for some failures. All its conditions must hold; those that are empty do.
type Rule struct {
	// RoutingKey is a topic pattern for the key of the first publication: eu.*, orders.#
	RoutingKey string
	// Headers are headers and their values, in which * stands for any text.
	Headers map[string]string
	// Error is a pattern for the name of the error's type, or of one that it wraps: *Timeout
	Error string
	// Retry is the policy.
	Retry Policy

	text string
}

// ParseRule reads a rule's text, the same in every language, such as
//
//	routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)
//
// The fields of such a rule are empty, and must stay so; String shows what it says.
func ParseRule(text string) (Rule, error) {
	if text == "" {
		return Rule{}, &Error{Code: ErrInvalidPolicy.Code, Message: "the rule is empty; write it like error=*Timeout => fixed(1s)"}
	}
	rule := Rule{text: text}
	parts, err := rule.native()
	if err != nil {
		return rule, err
	}
	options, err := native.NewOptions(native.Given{"queue": "any", "dlx": true, "rules": []any{parts}})
	if err != nil {
		return rule, ours(err)
	}
	options.Free()
	return rule, nil
}

// String is its text, as every language reads it.
func (r Rule) String() string {
	if r.text != "" {
		return r.text
	}
	var conditions []string
	if r.RoutingKey != "" {
		conditions = append(conditions, "routing_key="+r.RoutingKey)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
		conditions = append(conditions, "header."+name+"="+r.Headers[name])
	}
	if r.Error != "" {
		conditions = append(conditions, "error="+r.Error)
	}
	return strings.Join(conditions, ", ") + " => " + r.Retry.String()
}

// As the core reads it.
func (r Rule) native() (any, error) {
	if r.text != "" {
		if r.RoutingKey != "" || r.Headers != nil || r.Error != "" || !r.Retry.isZero() {
			return nil, badOption("the fields of the rule `%s` were set, which changes nothing in a rule that was parsed; "+
				"write a retryrmq.Rule instead", head(r.text))
		}
		return r.text, checkText("Rules", r.text)
	}
	policy, err := r.Retry.read()
	if err != nil {
		return nil, err
	}
	rule := native.Given{"policy": policy.Text}
	if r.RoutingKey != "" {
		rule["routing_key"] = r.RoutingKey
	}
	if r.Error != "" {
		rule["error"] = r.Error
	}
	if r.Headers != nil {
		rule["headers"] = r.Headers
	}
	texts := []string{r.RoutingKey, r.Error}
	for name, value := range r.Headers {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if err := checkText("Rules", text); err != nil {
			return nil, err
		}
	}
	return rule, nil
}
