package retryrmq

import (
	"math"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Option is an option of [Conn.Consume]. What is not said is the library's default, the same in every language.
type Option func(*plan) error

// A consumer to be.
type plan struct {
	given native.Given
	fatal []func(error) bool
	tell  []listener
	ready []func()
}

func newPlan(queue string, options []Option) (*plan, error) {
	p := &plan{given: native.Given{"queue": queue}}
	if err := checkText("queue", queue); err != nil {
		return nil, err
	}
	for _, option := range options {
		if option == nil {
			return nil, badOption("an option is nil")
		}
		if err := option(p); err != nil {
			return nil, err
		}
	}
	p.given["fatal"] = p.fatal != nil
	return p, nil
}

// DLX has failed messages retried and parked. Without it a failure is rejected without requeue, so that the queue's own
// dead-lettering decides.
func DLX() Option {
	return func(p *plan) error {
		p.given["dlx"] = true
		return nil
	}
}

// Retry is the policy for failures that no rule is about; exponential(1s, factor=4, max=5m, retries=5) by default.
func Retry(policy Policy) Option {
	return func(p *plan) error {
		read, err := policy.read()
		p.given["retry"] = read.Text
		return err
	}
}

// StrategyName names a strategy.
type StrategyName string

// How failed messages wait.
const (
	// RetryQueues: a confirmed copy waits in a queue per delay. Works with every queue, on every broker; the default.
	RetryQueues StrategyName = "retry-queues"
	// DeadLetter: the client rejects, the broker's dead-lettering does the rest; one fixed delay.
	DeadLetter StrategyName = "dead-letter"
	// Native: the delayed retry of quorum queues, RabbitMQ 4.3 and later; linear delays, back at the head.
	Native StrategyName = "native"
	// DelayedExchange: through the delayed-message plugin, for brokers before 4.3 that have it.
	DelayedExchange StrategyName = "delayed-exchange"
	// Service: a confirmed copy with the failure goes to `retryrmq serve`, whose policy decides when it comes back and when it is parked.
	Service StrategyName = "service"
)

// Strategy is how failed messages wait.
func Strategy(name StrategyName) Option {
	return func(p *plan) error {
		p.given["strategy"] = name
		if name == "" {
			return badOption("`Strategy` is empty; it is one of retry-queues, dead-letter, native, delayed-exchange and service")
		}
		return checkText("Strategy", string(name))
	}
}

// Rules choose another policy; the first that holds decides.
func Rules(rules ...Rule) Option {
	return func(p *plan) error {
		all, _ := p.given["rules"].([]any)
		for _, rule := range rules {
			parts, err := rule.native()
			if err != nil {
				return err
			}
			all = append(all, parts)
		}
		if all != nil {
			p.given["rules"] = all
		}
		return nil
	}
}

// Prefetch is how many messages may be unacknowledged at a time, 1 to 65535; 64 by default.
func Prefetch(n int) Option {
	return func(p *plan) error {
		if n < 1 || n > math.MaxUint16 {
			return badOption("`Prefetch` must be between 1 and 65535, not %d", n)
		}
		p.given["prefetch"] = n
		return nil
	}
}

// Priority says which consumers of the queue come first: while one of a higher priority has room in its [Prefetch], it gets the
// messages. It may be negative; 0 by default.
func Priority(n int) Option {
	return func(p *plan) error {
		if n < math.MinInt32 || n > math.MaxInt32 {
			return badOption("`Priority` must be between %d and %d, not %d", math.MinInt32, math.MaxInt32, n)
		}
		p.given["priority"] = n
		return nil
	}
}

// Concurrency is how many handlers run at a time; 16 by default.
func Concurrency(n int) Option {
	return counted("Concurrency", "concurrency", n, 100_000)
}

// HandlerTimeout is how long a handler may take; longer is a failed attempt. The handler's context ends then, with this as
// its deadline; a handler that does not look at it still takes its place among the concurrent ones. No limit by default.
func HandlerTimeout(d time.Duration) Option {
	return lasting("HandlerTimeout", "handler_timeout", d)
}

// NoParking drops messages that are given up instead of parking them.
func NoParking() Option {
	return func(p *plan) error {
		p.given["park"] = false
		return nil
	}
}

// Pause stops taking messages for d when more than the share failures of the last window attempts failed: then the messages
// are not the problem. After it one message is taken as a probe, whose success ends the pause and whose failure renews it. A
// zero stands for the default: 0.5, 20, 30 seconds.
func Pause(failures float64, window int, d time.Duration) Option {
	return func(p *plan) error {
		budget := native.Given{}
		if math.IsNaN(failures) || math.IsInf(failures, 0) {
			return badOption("the share of `Pause` cannot be %v; it is a share of the attempts, such as 0.5", failures)
		}
		if failures != 0 {
			budget["failures"] = failures
		}
		if window < 0 || window > math.MaxInt32 {
			return badOption("the window of `Pause` must be between 1 and 10000, not %d", window)
		}
		if window != 0 {
			budget["window"] = window
		}
		if err := checkSpan("Pause", d); err != nil {
			return err
		}
		if d != 0 {
			budget["duration"] = d.Seconds()
		}
		p.given["pause"] = budget
		return nil
	}
}

// OnEvent tells f of every event, one after the other, on a goroutine of its own that ends with the consumer. Events that
// come while 10 000 others wait for f are dropped, with a warning. Consume waits for f at its end, for what is left of the drain timeout
// and five seconds at least, and so does [Conn.Close]: f must not call Close.
func OnEvent(f func(Event)) Option {
	return func(p *plan) error {
		if f == nil {
			return badOption("`OnEvent` is nil")
		}
		p.tell = append(p.tell, func(event Event) bool {
			f(event)
			return true
		})
		return nil
	}
}

// Events sends every event to ch, as signal.Notify does: without waiting, so give it room; events without room are dropped,
// with a warning. The channel is not closed, and must not be before Consume returns.
func Events(ch chan<- Event) Option {
	return func(p *plan) error {
		if ch == nil {
			return badOption("the channel of `Events` is nil")
		}
		p.tell = append(p.tell, func(event Event) bool {
			select {
			case ch <- event:
				return true
			default:
				return false
			}
		})
		return nil
	}
}

// OnReady calls f when the subscription stands, before the first message: a consumer's queue exists then, and a service may say
// that it is ready. It runs on a goroutine of its own, and may call [Conn.Close]; Consume waits for it at its end, as long as for those of
// [OnEvent]. A panic of it is logged as an error.
func OnReady(f func()) Option {
	return func(p *plan) error {
		if f == nil {
			return badOption("`OnReady` is nil")
		}
		p.ready = append(p.ready, f)
		return nil
	}
}

// Fatal says which errors no retry can mend: where f is true, the message is parked at once. Of several, any decides. An f that
// panics says nothing: the attempt has failed, and the panic is logged as an error. It is called on the goroutines of handlers, many
// at a time; one that does not return holds up its message, or with a [HandlerTimeout] that message's next attempt. Of an error that
// wraps itself it is not asked. For a single error there is [Permanent].
func Fatal(f func(error) bool) Option {
	return func(p *plan) error {
		if f == nil {
			return badOption("`Fatal` is nil")
		}
		p.fatal = append(p.fatal, f)
		return nil
	}
}

// NoDeclare makes no queues: they must exist already, and the user needs no permission to configure.
func NoDeclare() Option {
	return func(p *plan) error {
		p.given["declare"] = false
		return nil
	}
}

// ReservedName consumes a queue although its name is one that waiting and parking queues have, such as orders.parked: that takes
// away what is parked. Without it such a name is refused. To look at parked messages or replay them, use [Conn.Parked].
func ReservedName() Option {
	return func(p *plan) error {
		p.given["reserved_name"] = true
		return nil
	}
}

// DrainTimeout is how long the end waits for running handlers, and for all else of your code; 30 seconds by default.
func DrainTimeout(d time.Duration) Option {
	return lasting("DrainTimeout", "drain_timeout", d)
}

// CrashLimit is after how many crashes of its consumer a message is parked; 10 by default.
func CrashLimit(n int) Option {
	return counted("CrashLimit", "crash_limit", n, 1_000_000)
}

// DeferLimit is after how many deferrals a message is parked; 1000 by default.
func DeferLimit(n int) Option {
	return counted("DeferLimit", "defer_limit", n, 1_000_000)
}

func counted(option, inCore string, n, most int) Option {
	return func(p *plan) error {
		if n < 1 || n > most {
			return badOption("`%s` must be between 1 and %d, not %d", option, most, n)
		}
		p.given[inCore] = n
		return nil
	}
}

func lasting(option, inCore string, d time.Duration) Option {
	return func(p *plan) error {
		if err := checkSpan(option, d); err != nil {
			return err
		}
		if d == 0 && option == "HandlerTimeout" {
			return badOption("`%s` must be longer than 0", option)
		}
		p.given[inCore] = d.Seconds()
		return nil
	}
}
