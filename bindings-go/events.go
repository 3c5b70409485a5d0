package retryrmq

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// EventName names what happened.
type EventName string

// What can happen.
const (
	// EventRetried: a failed message is on its way to wait; its original is acknowledged.
	EventRetried EventName = "retried"
	// EventDeferred: a message was deferred by its handler.
	EventDeferred EventName = "deferred"
	// EventParked: a message was parked.
	EventParked EventName = "parked"
	// EventHandedOver: with the strategy Service, a failed message was handed over to the service, whose policy decides; its original is
	// acknowledged.
	EventHandedOver EventName = "handed_over"
	// EventRejected: without DLX, a failed message was rejected; the queue's own dead-lettering decides.
	EventRejected EventName = "rejected"
	// EventDetoured: a message that was with a consumer when that went away takes a detour, so that the crash is counted.
	EventDetoured EventName = "detoured"
	// EventAlreadyHandled: a redelivery of a message that was handled before the connection dropped was acknowledged, not run again.
	EventAlreadyHandled EventName = "already_handled"
	// EventReplayed: a message that was replayed from the parking queue arrived.
	EventReplayed EventName = "replayed"
	// EventPublishFailed: a copy could not be stored; it is tried again, and the original is still unacknowledged.
	EventPublishFailed EventName = "publish_failed"
	// EventRequeued: copies could not be stored for long; the message goes back to its queue.
	EventRequeued EventName = "requeued"
	// EventDisconnected: the connection was lost; what was unacknowledged comes again.
	EventDisconnected EventName = "disconnected"
	// EventLoginRefused: the connection was lost, and the broker refuses the login or the virtual host now. It is tried again;
	// somebody has to change the login or the virtual host.
	EventLoginRefused EventName = "login_refused"
	// EventReconnected: consuming again after a loss.
	EventReconnected EventName = "reconnected"
	// EventPaused: too large a share of attempts failed; no messages are taken for a while.
	EventPaused EventName = "paused"
	// EventResumed: the probe message succeeded; messages are taken again.
	EventResumed EventName = "resumed"
)

// Event is something that an operator or a test would want to know. What an event does not say is empty or zero.
type Event struct {
	// Name is what happened.
	Name EventName
	// Queue is the work queue.
	Queue string
	// MessageID is the message's, if it is about one and its publisher gave it an id.
	MessageID string
	// Attempt is the attempt that failed.
	Attempt int
	// Delay is how long the message waits, or the consumer pauses.
	Delay time.Duration
	// Reason is why it was parked.
	Reason string
	// Error is what went wrong.
	Error string
	// Crashes is how many there were so far.
	Crashes int
}

func newEvent(t native.Told) Event {
	return Event{EventName(t.Name), t.Queue, t.MessageID, int(t.Attempt), time.Duration(t.Delay), t.Reason, t.Error,
		int(t.Crashes)}
}

// The most events that wait for a listener.
const eventRoom = 10_000

// Hears of an event; false when there was no room for it.
type listener func(Event) (heard bool)

// The listeners of one consumer, on a goroutine of their own: they may do what they like, also publish.
type listeners struct {
	number uint64
	events chan Event
	ended  chan struct{}
	log    *journal
	// Nobody waits for them any more.
	left atomic.Bool
}

func listen(tell []listener, log *journal) *listeners {
	if len(tell) == 0 {
		return nil
	}
	l := &listeners{events: make(chan Event, eventRoom), ended: make(chan struct{}), log: log}
	l.number = native.Listen(func(told native.Told) {
		select {
		case l.events <- newEvent(told):
		default:
			l.log.warnMissed(1)
		}
	})
	go l.run(tell, Event{}, nil)
	return l
}

// Tells one event to those who are left of that, and then all others to all.
func (l *listeners) run(tell []listener, event Event, left []listener) {
	over := false
	defer func() {
		if !over { // a listener has ended this goroutine: another one takes over
			l.log.sayLater(slog.LevelError, "retryrmq: an event listener ended its goroutine", "event", string(event.Name))
			go l.run(tell, event, left)
			return
		}
		close(l.ended)
	}()
	for {
		for len(left) > 0 && !l.left.Load() {
			f := left[0]
			left = left[1:]
			l.tell(f, event)
		}
		var more bool
		if event, more = <-l.events; !more {
			over = true
			return
		}
		left = tell
	}
}

func (l *listeners) tell(f listener, event Event) {
	heard := true
	if gone := safely(func() { heard = f(event) }); gone != nil {
		l.log.sayLater(slog.LevelError, "retryrmq: an event listener panicked", "event", string(event.Name), "panic", short(gone.text()))
	}
	if !heard {
		l.log.warnMissed(1)
	}
}

// Ends after everything that was told so far; false when that takes longer than it may.
func (l *listeners) end(limit time.Duration) bool {
	if l == nil {
		return true
	}
	native.Unlisten(l.number)
	close(l.events)
	if !within(limit, l.ended) {
		l.left.Store(true)
		return false
	}
	return true
}

func (l *listeners) id() uint64 {
	if l == nil {
		return 0
	}
	return l.number
}
