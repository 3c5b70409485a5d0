package retryrmq

import (
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// EventName is the name of an event, the same in every language.
type EventName string

// The names of events.
const (
	// EventRetried: a failed message waits for its next attempt. Its copy is confirmed, its original acknowledged.
	EventRetried EventName = "retried"
	// EventDeferred: a handler deferred a message.
	EventDeferred EventName = "deferred"
	// EventParked: a message was parked.
	EventParked EventName = "parked"
	// EventHandedOver: with the strategy Service, a failed message was handed over to the service, whose policy decides. Its original is
	// acknowledged.
	EventHandedOver EventName = "handed_over"
	// EventRejected: without DLX, a failed message was rejected without requeue. The queue's own dead-lettering decides.
	EventRejected EventName = "rejected"
	// EventDetoured: a message was redelivered because its consumer never settled it, or, with `native`, before its delay was over. A copy waits before the next attempt.
	EventDetoured EventName = "detoured"
	// EventAlreadyHandled: a message that was handled before the connection was lost was redelivered. It was acknowledged, not handled again.
	EventAlreadyHandled EventName = "already_handled"
	// EventReplayed: a message that was replayed from the parking queue arrived, and will be handled again.
	EventReplayed EventName = "replayed"
	// EventPublishFailed: a copy could not be stored. It is tried again; the original is still unacknowledged.
	EventPublishFailed EventName = "publish_failed"
	// EventRequeued: a message that did not run, or whose copy could not be stored for ten minutes, went back to the tail of its queue as a copy.
	// A requeue by AMQP basic.nack has no event.
	EventRequeued EventName = "requeued"
	// EventDisconnected: the connection or the channel was lost. Unacknowledged messages are delivered again.
	EventDisconnected EventName = "disconnected"
	// EventLoginRefused: the connection was lost, and the broker now refuses the login or the virtual host. The client keeps trying. Fix the
	// user, the password or the virtual host.
	EventLoginRefused EventName = "login_refused"
	// EventUnreadableMoved: the consumer moved messages of its queue to `<queue>.unreadable`: RabbitMQ cannot deliver them over AMQP 0-9-1, and
	// closed the connection instead. Their publishers should send other types. Sent once for each look at the queue that moved some.
	EventUnreadableMoved EventName = "unreadable_moved"
	// EventConsumingStopped: RabbitMQ closed one or more connections of the consumer with an error of its own, as it does for a message that it
	// cannot deliver, and no such message could be moved. The consumer does not consume until the cause is gone. It looks a few times more, and
	// may have to be started again. Sent once for each stop; EventReconnected follows when it consumes again.
	EventConsumingStopped EventName = "consuming_stopped"
	// EventReconnected: the consumer consumes again after a loss.
	EventReconnected EventName = "reconnected"
	// EventPaused: too many attempts failed, so the consumer takes no messages for a while.
	EventPaused EventName = "paused"
	// EventResumed: the probe message succeeded, so the consumer takes messages again.
	EventResumed EventName = "resumed"
)

// Event is what happened to a message or a consumer, for operators and tests. A field that an event does not have is empty or zero.
type Event struct {
	// Name says what happened.
	Name EventName
	// Queue is the work queue.
	Queue string
	// MessageID is the message's id, if the event is about a message and its publisher gave it one.
	MessageID string
	// Attempt is the number of the attempt that failed.
	Attempt int
	// Delay is how long the message waits, or the consumer pauses.
	Delay time.Duration
	// Reason is why the message was parked.
	Reason string
	// Error is the error, of an attempt at most 1024 bytes. Of EventConsumingStopped it says what to do as well.
	Error string
	// ErrorType is the type of the error of an attempt, if it is known, as [ErrorTypeOf] gives it.
	ErrorType string
	// Crashes is the number of the message's crashes so far.
	Crashes int
	// To is the queue to which messages were moved.
	To string
	// Count is how many messages were moved.
	Count int
	// Cause is why the first of them cannot be delivered.
	Cause string
}

// An event as the native half writes it: in snake case, and with nanoseconds.
type eventRow struct {
	Name      EventName     `json:"name"`
	Queue     string        `json:"queue"`
	MessageID string        `json:"message_id"`
	Attempt   int           `json:"attempt"`
	Delay     time.Duration `json:"delay"`
	Reason    string        `json:"reason"`
	Error     string        `json:"error"`
	ErrorType string        `json:"error_type"`
	Crashes   int           `json:"crashes"`
	To        string        `json:"to"`
	Count     int           `json:"count"`
	Cause     string        `json:"cause"`
}

// The most events that wait for a listener.
const maxEvents = 10_000

// Gets an event; false if there was no room for it.
type listener func(Event) (heard bool)

// The listeners of one consumer, on a goroutine of their own, so that they may block, and publish.
type listeners struct {
	number uint64
	events chan Event
	ended  chan struct{}
	log    *asyncLogger
	queue  string
	// Consume no longer waits for them.
	left atomic.Bool
}

func listen(tell []listener, log *asyncLogger, queue string) *listeners {
	if len(tell) == 0 {
		return nil
	}
	l := &listeners{events: make(chan Event, maxEvents), ended: make(chan struct{}), log: log, queue: queue}
	l.number = native.AddListener(func(row []byte) {
		var event eventRow
		if err := json.Unmarshal(row, &event); err != nil {
			l.log.logLater(slog.LevelError, "retryrmq: an event could not be decoded", "queue", queue, "event", string(row), "error", err)
			return
		}
		select {
		case l.events <- Event(event):
		default:
			l.log.warnOfDropped(1)
		}
	})
	go l.run(tell, Event{}, nil)
	return l
}

// Passes one event to the listeners that are left, and then all further events to all.
func (l *listeners) run(tell []listener, event Event, left []listener) {
	over := false
	defer func() {
		if !over { // a listener has ended this goroutine: another one takes over
			l.log.logLater(slog.LevelError, "retryrmq: an event listener ended its goroutine", "queue", l.queue, "event", string(event.Name))
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
	if panicked := catchPanic(func() { heard = f(event) }); panicked != nil {
		l.log.logLater(slog.LevelError, "retryrmq: an event listener panicked", "queue", l.queue, "event", string(event.Name),
			"panic", short(panicked.text()))
	}
	if !heard {
		l.log.warnOfDropped(1)
	}
}

// Ends after all events so far were passed on; false if that takes longer than the limit.
func (l *listeners) end(limit time.Duration) bool {
	if l == nil {
		return true
	}
	native.RemoveListener(l.number)
	close(l.events)
	if !waitAtMost(limit, l.ended) {
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
