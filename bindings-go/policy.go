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

// Policy says when a failed message is retried, and when it is parked instead. Its methods return changed copies:
//
//	retryrmq.Exponential(time.Second, 5*time.Minute).Retries(8).Jitter(0.2)
//
// Values that are not given have the library's defaults, the same in every language: Policy{}.Retries(3) is the default policy with three
// retries. Times are rounded up to milliseconds. A time shorter than a millisecond, as in Fixed(5), is an error, because its unit is missing.
// [Policy.Check] and [Conn.Consume] return [ErrInvalidPolicy] for a policy that cannot work.
type Policy struct {
	text   string // the parsed text; the other fields are empty then
	shape  string
	delays []time.Duration
	named  []setting
}

// A part of a policy that has a name.
type setting struct {
	name, value string
	// The duration it was made from, if it is one.
	span time.Duration
}

func (s setting) String() string { return s.name + "=" + s.value }

// Fixed waits the same time before every retry; 5 retries by default.
func Fixed(delay time.Duration) Policy { return Policy{shape: "fixed", delays: []time.Duration{delay}} }

// Linear waits initial before the first retry, and longer by step before each further one, up to 5 minutes; 5 retries by default. A step of
// zero stands for the default, a second.
func Linear(initial, step time.Duration) Policy {
	policy := Policy{shape: "linear", delays: []time.Duration{initial}}
	if step == 0 {
		return policy
	}
	return policy.withDuration("step", step)
}

// List waits these times, one after the other. By default there are as many retries as delays; with more retries the last delay repeats.
func List(delays ...time.Duration) Policy {
	return Policy{shape: "list", delays: append([]time.Duration(nil), delays...)}
}

// Exponential waits initial before the first retry, and multiplies the delay by 4 for each further one, up to limit; 5 retries by default. limit
// must not be shorter than initial. [Policy.Factor] changes the multiplier.
func Exponential(initial, limit time.Duration) Policy {
	return Policy{shape: "exponential", delays: []time.Duration{initial}}.withDuration("max", limit)
}

// ParsePolicy parses the text form of a policy, which is the same in every language:
//
//	exponential(1s, factor=4, max=5m, retries=5, jitter=0.2)
//
// It returns [ErrInvalidPolicy] for any other text.
func ParsePolicy(text string) (Policy, error) {
	if text == "" {
		// The zero Policy is the default, but an empty text is more likely a mistake.
		return Policy{}, &Error{Code: ErrInvalidPolicy.Code, Message: "the retry policy is empty; leave it out for the default"}
	}
	policy := Policy{text: text}
	return policy, policy.Check()
}

// Retries sets how many retries a message gets before it is parked. Attempts are one more.
func (p Policy) Retries(n int) Policy { return p.with("retries", strconv.Itoa(n)) }

// Factor sets by what each further delay of an exponential policy is multiplied: 1, or at least 1.001.
func (p Policy) Factor(factor float64) Policy {
	return p.with("factor", strconv.FormatFloat(factor, 'g', -1, 64))
}

// Max sets the longest delay of a linear or exponential policy.
func (p Policy) Max(most time.Duration) Policy { return p.withDuration("max", most) }

// Jitter sets how far delays are spread, 0 to 0.9: each is multiplied by 1 − share, 1 − share/2 or 1, at random.
func (p Policy) Jitter(share float64) Policy {
	return p.with("jitter", strconv.FormatFloat(share, 'g', -1, 64))
}

// MaxAge sets the greatest age: a message is parked as too-old if its next attempt would be later than this after its first failure.
func (p Policy) MaxAge(age time.Duration) Policy { return p.withDuration("max_age", age) }

// AgeFromPublication counts MaxAge from the message's AMQP timestamp, if its publisher set one.
func (p Policy) AgeFromPublication() Policy { return p.with("age_from", "published") }

// Check returns [ErrInvalidPolicy] if the policy cannot work.
func (p Policy) Check() error {
	_, err := p.read()
	return err
}

// Delays returns the delays before its retries, without jitter, at most the first thousand. It returns none for a policy that cannot work.
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

// String returns its full text form, which is the same in every language.
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
	return read, asError(err)
}

// The zero policy is the default one.
func (p Policy) isZero() bool { return p.shape == "" && p.text == "" && p.named == nil }

// The error for a missing unit, which rounding up would hide.
func (p Policy) checkSpans() error {
	bare := func(what string, d time.Duration) error {
		err := unitlessError(what, d)
		err.Code = ErrInvalidPolicy.Code
		return err
	}
	for _, delay := range p.delays {
		if isUnitless(delay) {
			return bare("a delay of the policy `"+p.shape+"`", delay)
		}
	}
	for _, part := range p.named {
		if isUnitless(part.span) {
			return bare("`"+part.name+"` of the retry policy", part.span)
		}
	}
	return nil
}

func (p Policy) with(name, value string) Policy { return p.set(setting{name: name, value: value}) }

func (p Policy) withDuration(name string, span time.Duration) Policy {
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

// The text for the native half: the parsed text with additions, or a text made from the parts.
func (p Policy) written() string {
	if p.shape == "" {
		if p.text == "" && p.named != nil {
			p.text = Policy{}.String() // the rest has the defaults
		}
		shape, inner, opened := strings.Cut(strings.TrimSpace(p.text), "(")
		inner, closed := strings.CutSuffix(inner, ")")
		if !opened || !closed || len(p.named) == 0 {
			return p.text
		}
		parts := slices.DeleteFunc(strings.Split(inner, ","), p.isOverridden)
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
func (p Policy) isOverridden(part string) bool {
	name, _, named := strings.Cut(part, "=")
	return named && slices.ContainsFunc(p.named, func(entry setting) bool { return entry.name == strings.TrimSpace(name) })
}

// In whole milliseconds, the unit of the broker; rounded up, so that no retry is early.
func milliseconds(d time.Duration) string {
	whole := d / time.Millisecond
	if whole*time.Millisecond < d {
		whole++
	}
	return strconv.FormatInt(int64(whole), 10) + "ms"
}

// Rule chooses another policy for some failures. All its conditions must match; an empty condition matches everything.
type Rule struct {
	// RoutingKey is a topic pattern for the original routing key: eu.*, orders.#
	RoutingKey string
	// Headers are names and values of headers. * in a value matches any text.
	Headers map[string]string
	// Error is a pattern for the type name of the error, or of one that it wraps: *Timeout
	Error string
	// Retry is the policy for messages that match.
	Retry Policy

	text string
}

// ParseRule parses the text form of a rule, which is the same in every language:
//
//	routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)
//
// It returns [ErrInvalidPolicy] for any other text. The fields of a parsed rule are empty, and must stay empty; String returns its text.
func ParseRule(text string) (Rule, error) {
	if text == "" {
		return Rule{}, &Error{Code: ErrInvalidPolicy.Code, Message: "the rule is empty; write it like error=*Timeout => fixed(1s)"}
	}
	rule := Rule{text: text}
	parts, err := rule.native()
	if err != nil {
		return rule, err
	}
	options, err := native.NewOptions(native.OptionValues{"queue": "any", "dlx": true, "rules": []any{parts}})
	if err != nil {
		return rule, asError(err)
	}
	options.Free()
	return rule, nil
}

// String returns its text form, which is the same in every language.
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

// In the form that the core reads.
func (r Rule) native() (any, error) {
	if r.text != "" {
		if r.RoutingKey != "" || r.Headers != nil || r.Error != "" || !r.Retry.isZero() {
			return nil, invalidOption("the fields of the rule `%s` were set, which changes nothing in a rule that was parsed; "+
				"write a retryrmq.Rule instead", head(r.text))
		}
		return r.text, checkText("Rules", r.text)
	}
	policy, err := r.Retry.read()
	if err != nil {
		return nil, err
	}
	rule := native.OptionValues{"policy": policy.Text}
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
