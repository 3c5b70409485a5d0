package retryrmq

import (
	"math"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Option is an option of [Conn.Consume]. Without an option its default applies, the same in every language. An option that cannot work is an
// [ErrInvalidOption] or [ErrInvalidPolicy] of Consume; no message was taken then.
type Option func(*plan) error

// A consumer that is not running yet.
type plan struct {
	given native.OptionValues
	fatal []func(error) bool
	tell  []listener
	ready []func()
	// Outermost first.
	middleware []Middleware
}

func newPlan(queue string, options []Option) (*plan, error) {
	p := &plan{given: native.OptionValues{"queue": queue}}
	if err := checkText("queue", queue); err != nil {
		return nil, err
	}
	for _, option := range options {
		if option == nil {
			return nil, invalidOption("an option is nil")
		}
		if err := option(p); err != nil {
			return nil, err
		}
	}
	p.given["fatal"] = p.fatal != nil
	return p, nil
}

// DLX retries and parks failed messages. Without it a failed message is rejected without requeue, and the queue's own dead-lettering
// decides; without a dead-letter exchange the broker drops it. A consumer with neither DLX nor [NoDLX] logs a warning when it starts.
func DLX() Option {
	return func(p *plan) error {
		p.given["dlx"] = true
		return nil
	}
}

// NoDLX rejects failed messages, as a consumer without [DLX] does, and silences the warning at its start: the queue's own dead-lettering decides.
func NoDLX() Option {
	return func(p *plan) error {
		p.given["dlx"] = false
		return nil
	}
}

// Retry sets the policy for failures that no rule matches. The default is exponential(1s, factor=4, max=5m, retries=5). It needs [DLX].
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
	// RetryQueues: a confirmed copy waits in one queue per delay. It works with every queue, on every supported broker. The default.
	RetryQueues StrategyName = "retry-queues"
	// DeadLetter: the client rejects the message, and the broker dead-letters it into the waiting queue. There is one fixed delay.
	DeadLetter StrategyName = "dead-letter"
	// Native: the delayed retry of quorum queues, from RabbitMQ 4.3 on. Delays are linear, and a message returns to the head of its queue.
	Native StrategyName = "native"
	// DelayedExchange: a copy waits in an exchange of the delayed-message plugin, for brokers before 4.3 that have it.
	DelayedExchange StrategyName = "delayed-exchange"
	// Service: a confirmed copy, with its failure, goes to `retryrmq serve`, whose policy decides when it returns and when it is parked.
	Service StrategyName = "service"
)

// Strategy sets how failed messages wait; [RetryQueues] by default.
func Strategy(name StrategyName) Option {
	return func(p *plan) error {
		p.given["strategy"] = name
		if name == "" {
			return invalidOption("`Strategy` is empty; it is one of retry-queues, dead-letter, native, delayed-exchange and service")
		}
		return checkText("Strategy", string(name))
	}
}

// Rules adds rules that choose another policy. The first rule that matches decides. It needs [DLX].
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

// Prefetch sets how many messages may be unacknowledged at a time (AMQP basic.qos): 1 to 65535, 64 by default.
func Prefetch(n int) Option {
	return func(p *plan) error {
		if n < 1 || n > math.MaxUint16 {
			return invalidOption("`Prefetch` must be between 1 and 65535, not %d", n)
		}
		p.given["prefetch"] = n
		return nil
	}
}

// PrefetchBytes sets how many bytes of bodies of unacknowledged messages the consumer holds, about. The broker sends fewer messages while they are
// large. What does not fit is returned and comes again. A message larger than n is handled while no other one is. No limit by default.
func PrefetchBytes(n int64) Option {
	return func(p *plan) error {
		if n < 1 {
			return invalidOption("`PrefetchBytes` must be at least 1, not %d", n)
		}
		p.given["prefetch_bytes"] = n
		return nil
	}
}

// Priority sets the priority among the consumers of the queue (x-priority): while a consumer of a higher priority has room in its [Prefetch],
// it gets all messages. It may be negative; 0 by default.
func Priority(n int) Option {
	return func(p *plan) error {
		if n < math.MinInt32 || n > math.MaxInt32 {
			return invalidOption("`Priority` must be between %d and %d, not %d", math.MinInt32, math.MaxInt32, n)
		}
		p.given["priority"] = n
		return nil
	}
}

// Concurrency sets how many handlers run at a time: 1 to 100 000; 16 by default.
func Concurrency(n int) Option {
	return countOption("Concurrency", "concurrency", n, 100_000)
}

// Batch sets how many messages a [BatchHandler] gets at most: 1 to 10 000. [Conn.ConsumeBatches] needs it, and nothing else takes it. [Concurrency]
// then counts batches, and [Prefetch] is n × concurrency by default, if that is more than 64. It cannot be smaller than n.
//
// If the process crashes, the broker counts that for every message it held. So keep n × concurrency no larger than you need.
func Batch(n int) Option {
	return countOption("Batch", "batch", n, 10_000)
}

// BatchWait sets how long an incomplete batch waits for more messages, from its first on: 200 milliseconds by default, at most a minute. With 0, a
// handler gets what is there. It needs [Batch].
func BatchWait(d time.Duration) Option {
	return durationOption("BatchWait", "batch_wait", d)
}

// HandlerTimeout sets how long a handler may run, at most 365 days. It is the deadline of the handler's context; at the deadline the attempt
// has failed. A handler that ignores its context still counts in [Concurrency] until it returns. No limit by default.
func HandlerTimeout(d time.Duration) Option {
	return durationOption("HandlerTimeout", "handler_timeout", d)
}

// NoParking acknowledges and drops messages that are given up, instead of parking them. It needs [DLX].
func NoParking() Option {
	return func(p *plan) error {
		p.given["park"] = false
		return nil
	}
}

// Pause stops taking messages for the time d when more than the share failures of the last window attempts failed. After the pause, one message
// is taken as a probe: if it succeeds, the consumer resumes; if it fails, the next pause begins. failures is at least 0 and below 1, window at
// most 10 000, d at most 365 days. A zero stands for the default: 0.5, 20, 30 seconds. Without this option there is no pause.
func Pause(failures float64, window int, d time.Duration) Option {
	return func(p *plan) error {
		budget := native.OptionValues{}
		if math.IsNaN(failures) || math.IsInf(failures, 0) {
			return invalidOption("the share of `Pause` cannot be %v; it is a share of the attempts, such as 0.5", failures)
		}
		if failures != 0 {
			budget["failures"] = failures
		}
		if window < 0 || window > math.MaxInt32 {
			return invalidOption("the window of `Pause` must be between 1 and 10000, not %d", window)
		}
		if window != 0 {
			budget["window"] = window
		}
		if err := checkDuration("Pause", d); err != nil {
			return err
		}
		if d != 0 {
			budget["duration"] = d.Seconds()
		}
		p.given["pause"] = budget
		return nil
	}
}

// OnEvent calls f with every event, one after the other, on a goroutine of its own that ends with the consumer. If 10 000 events wait for f,
// further ones are dropped, with a warning in the log. At its end, Consume waits for f up to the rest of the drain timeout, and at least five
// seconds. So does [Conn.Close]: f must not call Close.
func OnEvent(f func(Event)) Option {
	return func(p *plan) error {
		if f == nil {
			return invalidOption("`OnEvent` is nil")
		}
		p.tell = append(p.tell, func(event Event) bool {
			f(event)
			return true
		})
		return nil
	}
}

// Events sends every event to ch. Like signal.Notify, it does not block, so give the channel a buffer. If the buffer is full, events are dropped,
// with a warning in the log. The channel is not closed; do not close it before Consume returns.
func Events(ch chan<- Event) Option {
	return func(p *plan) error {
		if ch == nil {
			return invalidOption("the channel of `Events` is nil")
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

// OnReady calls f when the broker has accepted the consumer, before the first message. The queue exists then, and a service can report that it
// is ready. f runs on a goroutine of its own, and may call [Conn.Close]. At its end, Consume waits for f as long as for those of [OnEvent]. A
// panic in f is logged as an error.
func OnReady(f func()) Option {
	return func(p *plan) error {
		if f == nil {
			return invalidOption("`OnReady` is nil")
		}
		p.ready = append(p.ready, f)
		return nil
	}
}

// Fatal defines errors that no retry can fix: if f returns true, the message is parked at once as fatal. It needs [DLX]. It may be given
// several times; any of the functions can decide. For a single error there is [Permanent].
//
// f is called on the goroutines of handlers, many at a time. If it panics, it decides nothing, and the panic is logged as an error. If it does
// not return, the message stays unsettled. With a [HandlerTimeout] it is settled without f, at the latest 10 seconds (or one more handler timeout,
// if longer) after the deadline. f is not called for an error that wraps itself.
func Fatal(f func(error) bool) Option {
	return func(p *plan) error {
		if f == nil {
			return invalidOption("`Fatal` is nil")
		}
		p.fatal = append(p.fatal, f)
		return nil
	}
}

// NoDeclare creates no queues: they must exist already, and the user needs no configure permission.
func NoDeclare() Option {
	return func(p *plan) error {
		p.given["declare"] = false
		return nil
	}
}

// ReservedName allows a queue whose name is reserved for the queues of another one: *.parked, *.unreadable or *.retry.<number>. Consuming it
// removes the messages there. Without this option such a name is refused. To look at parked messages or replay them, use [Conn.Parked].
func ReservedName() Option {
	return func(p *plan) error {
		p.given["reserved_name"] = true
		return nil
	}
}

// DrainTimeout sets how long Consume waits at its end for running handlers and for all other code of yours: 30 seconds by default, at most
// 365 days. After that, unsettled messages are requeued.
func DrainTimeout(d time.Duration) Option {
	return durationOption("DrainTimeout", "drain_timeout", d)
}

// CrashLimit sets after how many crashes of its consumer a message is parked as delivery-limit: 1 to 1 000 000; 10 by default.
func CrashLimit(n int) Option {
	return countOption("CrashLimit", "crash_limit", n, 1_000_000)
}

// DeferLimit sets after how many deferrals a message is parked as exhausted: 1 to 1 000 000; 1000 by default.
func DeferLimit(n int) Option {
	return countOption("DeferLimit", "defer_limit", n, 1_000_000)
}

func countOption(option, inCore string, n, most int) Option {
	return func(p *plan) error {
		if n < 1 || n > most {
			return invalidOption("`%s` must be between 1 and %d, not %d", option, most, n)
		}
		p.given[inCore] = n
		return nil
	}
}

func durationOption(option, inCore string, d time.Duration) Option {
	return func(p *plan) error {
		if err := checkDuration(option, d); err != nil {
			return err
		}
		if d == 0 && option == "HandlerTimeout" {
			return invalidOption("`%s` must be longer than 0", option)
		}
		p.given[inCore] = d.Seconds()
		return nil
	}
}
