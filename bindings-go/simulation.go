package retryrmq

import (
	"context"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Simulation is a simulated queue and its consumer, for tests without a broker. Policy, rules, limits and headers work as in a real consumer;
// the clock is simulated, so waiting takes no time. Package retryrmqtest is a simpler interface. There are no events: functions of [OnEvent]
// and [OnReady] are not called, and the channel of [Events] stays empty.
type Simulation struct {
	queue      string
	handler    Handler
	classifier errorClassifier
	limit      time.Duration
	simulation *native.Simulation
	published  int64
	// Called after each attempt, if it is not nil.
	counted func(Step)
	// Ends when its consumer no longer waits for it; nil without a consumer.
	drained context.Context
	// Called when it is closed, if it is not nil.
	closed func()
}

// Step is one attempt of a [Simulation].
type Step struct {
	// Index is the index of the message; 0 is the first that was published.
	Index int
	// Message is the message, as the handler got it.
	Message *Message
	// At is when the attempt began, on the simulated clock.
	At time.Duration
	// Became is what happened to the message: acked, retried, deferred, parked, dropped or rejected, see [BecameAcked] and so on.
	Became string
	// Err is what the handler returned, or its panic.
	Err error
	// Delay is how long the message waits then; 0 if it does not wait.
	Delay time.Duration
	// Reason is why it was parked or dropped, see [ReasonExhausted] and so on.
	Reason string
	// Parked is the parked message, with its record; nil if it was not parked.
	Parked *Message
}

// The values of Step.Became: what happened to a message.
const (
	BecameAcked    = "acked"
	BecameRetried  = "retried"
	BecameDeferred = "deferred"
	BecameParked   = "parked"
	BecameDropped  = "dropped"
	BecameRejected = "rejected"
)

// Whether NewSimulation made it: a nil or zero Simulation cannot be used.
func (s *Simulation) isMade() bool { return s != nil && s.simulation != nil }

var errNotMade = invalidOption("this Simulation was not created by NewSimulation")

// The header by which a simulation recognises its messages.
const simulated = "retryrmq-simulated"

// NewSimulation makes an empty queue and its consumer. The options are those of [Conn.Consume], and so are the errors for options that cannot
// work. Close it at the end.
func NewSimulation(queue string, handler Handler, options ...Option) (*Simulation, error) {
	if handler == nil {
		return nil, invalidOption("the handler is nil")
	}
	plan, err := newPlan(queue, options)
	if err != nil {
		return nil, err
	}
	if err := plan.checkSingle(); err != nil {
		return nil, err
	}
	if handler, err = plan.wrap(handler, nil); err != nil {
		return nil, err
	}
	return plan.simulation(queue, handler)
}

// The queue and its consumer, for a handler with its middleware.
func (p *plan) simulation(queue string, handler Handler) (*Simulation, error) {
	checked, err := native.NewOptions(p.given)
	if err != nil {
		return nil, asError(err)
	}
	defer checked.Free()
	simulation, err := native.NewSimulation(checked)
	if err != nil {
		return nil, asError(err)
	}
	return &Simulation{queue: queue, handler: handler, classifier: newErrorClassifier(p, checked, &defaultLogger),
		limit: time.Duration(checked.HandlerTimeout), simulation: simulation}, nil
}

// Publish publishes to the queue. Every exchange and routing key leads to it; an empty routing key is the queue's name.
func (s *Simulation) Publish(message Publishing) error {
	if !s.isMade() {
		return errNotMade
	}
	if message.RoutingKey == "" && message.Exchange == "" {
		message.RoutingKey = s.queue
	}
	headers := Table{simulated: s.published}
	for name, value := range message.Headers {
		headers[name] = value
	}
	message.Headers = headers
	outgoing, err := message.native()
	if err != nil {
		return err
	}
	s.published++
	return asError(s.simulation.Publish(outgoing))
}

// Step runs the handler on the next message; the clock moves on to its arrival. It returns false if there is none.
//
// Only the broker is simulated: whatever the handler does is real, and so is the handler timeout. The handler runs on the caller's goroutine, so
// [runtime.Goexit] or t.FailNow in it ends that. If ctx has ended, the handler is not called, and the error of ctx is returned.
func (s *Simulation) Step(ctx context.Context) (Step, bool, error) {
	if err := checkContext(ctx); err != nil {
		return Step{}, false, err
	}
	if !s.isMade() {
		return Step{}, false, errNotMade
	}
	if ctx.Err() != nil {
		return Step{}, false, native.ContextError(ctx)
	}
	batch, err := s.simulation.Next()
	if err != nil {
		return Step{}, false, asError(err)
	}
	messages, err := readBatch(batch, s.queue)
	if len(messages) == 0 || err != nil {
		return Step{}, false, err
	}
	m := messages[0]
	step := Step{Index: s.unmark(m), Message: m, At: time.Duration(s.simulation.Elapsed())}
	step.Err = s.attempt(ctx, m)
	if s.drained != nil && s.drained.Err() != nil { // the message is requeued, whatever the handler returned
		return Step{}, false, errDrained
	}
	end := &native.End{What: native.Ack}
	if step.Err != nil {
		end = s.classifier.classify(step.Err, m)
	}
	result, err := s.simulation.Settle(m.token, end)
	if err != nil {
		return step, false, asError(err)
	}
	step.Became, step.Delay, step.Reason = result.What, time.Duration(result.Delay), result.Reason
	if result.Parked != nil {
		if step.Parked, err = readMessage(result.Parked, s.queue); err != nil {
			return step, false, err
		}
		s.unmark(step.Parked)
	}
	if s.counted != nil {
		s.counted(step)
	}
	return step, true, nil
}

func (s *Simulation) attempt(ctx context.Context, m *Message) error {
	if s.limit == 0 {
		return call(ctx, s.handler, m)
	}
	ctx, cancel, limit := withHandlerDeadline(ctx, &timeoutError{s.limit})
	defer cancel()
	return limit.result(call(ctx, s.handler, m))
}

// Removes our mark from the message.
func (s *Simulation) unmark(m *Message) int {
	index, _ := m.Headers()[simulated].(int64)
	delete(m.table, simulated)
	return int(index)
}

// Elapsed returns how far the simulated clock has moved.
func (s *Simulation) Elapsed() time.Duration {
	if !s.isMade() {
		return 0
	}
	return time.Duration(s.simulation.Elapsed())
}

// Close frees the simulation.
func (s *Simulation) Close() {
	if s.isMade() {
		s.simulation.Free()
		if s.closed != nil {
			s.closed()
		}
	}
}
