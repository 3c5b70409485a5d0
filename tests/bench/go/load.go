package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Which attempts fail, and when all is done: every loop asks this, whoever wrote it. Either each message fails so often, or all attempts
// fail while a dependency is away.
type load interface {
	// Whether an attempt at a message fails that has failed so often before.
	fails(failed int) bool
	// The queue to which the loop by hand sends a message that fails, and has failed so often before.
	place(queue string, failed int) string
	// A message has succeeded.
	done()
	// The policy, as retryrmq takes it.
	policy() retryrmq.Policy
	// How many messages a client may hold.
	outstanding() int
}

// Each message fails so often, waits a second each time, and succeeds.
type failing struct {
	*meter
	failures, held int
}

func (f failing) fails(failed int) bool {
	f.arrived()
	return failed < f.failures
}
func (f failing) place(queue string, _ int) string { return waiting(queue, time.Second) }
func (f failing) done()                            { f.one() }
func (f failing) policy() retryrmq.Policy          { return retryrmq.Fixed(time.Second) }
func (f failing) outstanding() int                 { return f.held }

// How many messages a client may hold while each fails once.
var held = number("RETRYRMQ_BENCH_OUTSTANDING", prefetch)

func once(count int) load { return failing{newMeter(count), 1, held} }

// Everything in a queue at once.
func storm(count int) load { return failing{newMeter(count), 5, 1000} }

const retries = 5

// A dependency is away from the first message on, until all have come; five retries after 1, 2, 4, 8 and 16 seconds.
type outage struct {
	count                     int
	first                     sync.Once
	back                      time.Time
	cpu                       time.Duration
	attempts, handled, parked atomic.Int64
}

func newOutage(count int) load { return &outage{count: count} }

func (o *outage) fails(failed int) bool {
	o.first.Do(func() {
		o.back, o.cpu = time.Now().Add(time.Duration(o.count)*time.Second/perSecond), cpu()
	})
	if !time.Now().Before(o.back) {
		return false
	}
	o.attempts.Add(1)
	if failed == retries {
		o.parked.Add(1)
	}
	return true
}

func (o *outage) place(queue string, failed int) string {
	if failed < retries {
		return waiting(queue, time.Second<<failed)
	}
	return dead(queue)
}

// The last message came as the dependency returned, so that it cannot be given up: the end is always here.
func (o *outage) done() {
	if o.handled.Add(1)+o.parked.Load() < int64(o.count) {
		return
	}
	print(figures{
		"attempts": float64(o.attempts.Load()),
		"parked":   float64(o.parked.Load()),
		"after_s":  time.Since(o.back).Seconds(),
		"cpu_us":   float64((cpu() - o.cpu).Microseconds()) / float64(o.count),
	})
}

func (o *outage) policy() retryrmq.Policy {
	return must(retryrmq.ParsePolicy(fmt.Sprintf("exponential(1s, factor=2, retries=%d)", retries)))
}
func (o *outage) outstanding() int { return prefetch }

// How long messages wait in these queues.
var delays = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}

// The queue in which messages wait so long when it is done by hand.
func waiting(queue string, delay time.Duration) string {
	return fmt.Sprintf("%s.waiting.%d", queue, delay.Milliseconds())
}

// The queue of those that are given up.
func dead(queue string) string { return queue + ".dead" }

// The measured program, with a load of its own.
func asked(loop func(url, queue string, load load), of func(count int) load) program {
	return func(url, queue string, count int) { loop(url, queue, of(count)) }
}
