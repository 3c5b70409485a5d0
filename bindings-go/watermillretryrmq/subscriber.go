package watermillretryrmq

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// SubscriberConfig is the configuration of a [Subscriber].
type SubscriberConfig struct {
	// Queue returns the queue of a topic. By default that is the topic.
	Queue func(topic string) string
	// Options are those of [retryrmq.Conn.Consume], for every topic, such as retryrmq.DLX() and retryrmq.Retry(…).
	Options []retryrmq.Option
}

// Subscriber is a message.Subscriber.
type Subscriber struct {
	conn   *retryrmq.Conn
	config SubscriberConfig
	logger watermill.LoggerAdapter

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	// Ends all subscriptions.
	ctx    context.Context
	cancel context.CancelFunc
	// Why subscriptions ended, other than by being asked to.
	failed error
}

// ErrClosed is the error of Subscribe after Close.
var ErrClosed = errors.New("watermillretryrmq: the subscriber is closed")

// NewSubscriber returns a subscriber on a connection, which stays open when the subscriber is closed. A nil logger logs nothing.
func NewSubscriber(conn *retryrmq.Conn, config SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	if conn == nil {
		return nil, errNoConn
	}
	if config.Queue == nil {
		config.Queue = func(topic string) string { return topic }
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Subscriber{conn: conn, config: config, logger: logger, ctx: ctx, cancel: cancel}, nil
}

// Subscribe consumes the queue of a topic, and returns once the broker has accepted the consumer, or with the error of [retryrmq.Conn.Consume].
//
// An Ack acknowledges the message. After a Nack the attempt has failed: the message is retried or parked, as the options say. So a Nack does not
// redeliver it at once. If a handler under [Outcome] nacks its message itself, the attempt ends when the handler does, with its error. Up to
// [retryrmq.Concurrency] messages are on their way at a time.
//
// When ctx ends, or with Close, it drains: messages that were passed on may still be acked, and the channel is closed when none is left, at the
// latest after [retryrmq.DrainTimeout]. Then what was not acked is requeued. The context of a message has the values of ctx, and ends with the Ack
// or Nack, the [retryrmq.HandlerTimeout] or the drain timeout.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.running.Add(1)
	s.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	out := &output{messages: make(chan *message.Message)}
	ready, ended := make(chan struct{}), make(chan error, 1)
	options := append([]retryrmq.Option{retryrmq.OnReady(func() { close(ready) })}, s.config.Options...)
	queue := s.config.Queue(topic)
	go func() {
		defer s.running.Done()
		defer cancel()
		defer stop()
		err := s.conn.Consume(ctx, queue, out.handle, options...)
		out.end()
		ended <- err
		select {
		case <-ready:
			s.over(err, watermill.LogFields{"topic": topic, "queue": queue})
		default: // Subscribe returns it
		}
	}()
	select {
	case <-ready:
		return out.messages, nil
	case err := <-ended:
		select {
		case <-ready: // it began and has ended meanwhile
			return out.messages, nil
		default:
		}
		if err == nil { // ctx ended first
			return out.messages, nil
		}
		return nil, err
	}
}

func (s *Subscriber) over(err error, fields watermill.LogFields) {
	if err == nil {
		return
	}
	s.logger.Error("The subscription has ended", err, fields)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

// Close ends all subscriptions as if their contexts had ended, and waits for them. It returns why a subscription ended by itself, or that messages
// were left behind at the end of the drain timeout. A second call returns the same.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// The channel of a subscription. Handlers that were left behind may still want to send when it is closed.
type output struct {
	mu       sync.RWMutex
	ended    bool
	messages chan *message.Message
}

func (o *output) send(ctx context.Context, msg *message.Message) error {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.ended {
		return context.Cause(ctx)
	}
	select {
	case o.messages <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	close(o.messages)
}

// Passes a message on, and waits for its Ack or Nack, so that a handler that ignores its context still counts in Concurrency.
func (o *output) handle(ctx context.Context, m *retryrmq.Message) error {
	a := &attempt{message: m}
	own, cancel := context.WithCancel(context.WithValue(ctx, attemptKey{}, a))
	defer cancel()
	msg := received(m)
	msg.SetContext(own)
	if err := o.send(ctx, msg); err != nil {
		return err
	}
	select {
	case <-msg.Acked():
		return nil
	case <-msg.Nacked():
		cancel()
		a.wait(ctx)
		return a.why()
	}
}
