package retryrmq

import (
	"context"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Publishing is a message to publish. Its zero values are the safe ones: the message is persistent, and it is an error if no queue takes it.
type Publishing struct {
	// Exchange is the exchange. Empty is the default exchange, for which the routing key is the name of a queue.
	Exchange string
	// RoutingKey is the name of a queue, or a routing key for the exchange.
	RoutingKey string
	// Body is the body, any bytes.
	Body []byte
	// Headers are the headers.
	Headers Table
	// Delay delivers the message after this time, at most 365 days. Only through the default exchange, and without Expiration or the headers
	// CC and BCC. The queue must exist; otherwise the error is [ErrQueueNotFound], not [ErrUnroutable].
	Delay time.Duration
	// Optional: it is not an error if no queue takes the message (AMQP mandatory off).
	Optional bool
	// Transient: the message does not survive a restart of the broker (AMQP delivery-mode 1).
	Transient bool
	// MessageID is the message's id. A consumer recognises a redelivery of a handled message by it. At most 255 bytes; a longer id is an error.
	MessageID string
	// ContentType is a MIME type such as application/json.
	ContentType string
	// ContentEncoding is an encoding such as gzip.
	ContentEncoding string
	// CorrelationID is for replies: the id that links a reply to its request.
	CorrelationID string
	// ReplyTo is for replies: the queue that the reply goes to.
	ReplyTo string
	// Expiration: after this time in a queue the broker drops or dead-letters the message. Rounded up to whole milliseconds, at
	// most 3650 days; 0 for never.
	Expiration time.Duration
	// Priority is 0 to 255.
	Priority uint8
	// Timestamp is the time of publication. AMQP keeps whole seconds.
	Timestamp time.Time
	// Type is the application's name for the kind of message.
	Type string
	// AppID is the application's name.
	AppID string
	// UserID must be the connection's own user.
	UserID string
}

// Publish publishes a message and waits until the broker has confirmed it (publisher confirms).
//
// [ErrUnroutable] means that no queue takes it; [ErrTooLarge], [ErrAccessRefused] and [ErrInvalidOption] mean that something must change first:
// it was not stored then. After [ErrNotConfirmed], [ErrTimeout] or [ErrConnectionLost] it may have been stored: publish it again. With a
// Delay: [ErrQueueNotFound], [ErrMismatch] or [ErrStrategyRefused] if there is no queue to wait in; the message was not stored. After
// [Conn.Close]: [ErrClosed]. If ctx ends first, its error is returned, and the message may still be published.
//
// If ctx has a deadline, Publish waits until then for a connection, for the end of a memory or disk alarm, and for the confirm. Without one it waits
// 5 seconds for a connection, and 20 seconds in an alarm and for the confirm. While the broker confirms nothing, the 20 seconds double each time,
// up to 300.
func (c *Conn) Publish(ctx context.Context, message Publishing) error {
	if c == nil || c.publisher == nil {
		return c.publish(ctx, &message)
	}
	if err := checkContext(ctx); err != nil {
		return err
	}
	return c.publisher(ctx, message.withOwnHeaders())
}

// Publishes, after all middleware.
func (c *Conn) publish(ctx context.Context, message *Publishing) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	outgoing, err := message.native()
	if err != nil {
		return err
	}
	if err := c.enterToPublish(); err != nil {
		return err
	}
	defer c.publishes.Done()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	if c.broker != nil {
		return c.publishToFake(message, outgoing)
	}
	if deadline, ok := ctx.Deadline(); ok {
		// The context's own error comes first.
		outgoing.Timeout = to(uint64(min(max(time.Until(deadline), 0)+time.Second, longestTimeout)))
	}
	op, err := c.client.Publish(outgoing)
	if err != nil {
		return asError(err)
	}
	return asError(op.Wait(ctx))
}

func (p *Publishing) native() (*native.Outgoing, error) {
	texts := [...][2]string{{"Exchange", p.Exchange}, {"RoutingKey", p.RoutingKey}, {"MessageID", p.MessageID},
		{"ContentType", p.ContentType}, {"ContentEncoding", p.ContentEncoding}, {"CorrelationID", p.CorrelationID},
		{"ReplyTo", p.ReplyTo}, {"Type", p.Type}, {"AppID", p.AppID}, {"UserID", p.UserID}}
	for _, text := range texts {
		if err := checkText(text[0], text[1]); err != nil {
			return nil, err
		}
	}
	o := &native.Outgoing{
		Exchange: p.Exchange, RoutingKey: p.RoutingKey, Body: p.Body, Mandatory: !p.Optional, Persistent: !p.Transient,
		MessageID: p.MessageID, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
		CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo, Type: p.Type, AppID: p.AppID, UserID: p.UserID,
	}
	for _, span := range []struct {
		name string
		d    time.Duration
		into **uint64
	}{{"Delay", p.Delay, &o.Delay}, {"Expiration", p.Expiration, &o.Expiration}} {
		if err := checkDuration(span.name, span.d); err != nil {
			return nil, err
		}
		if span.d > 0 {
			*span.into = to(uint64(span.d))
		}
	}
	if p.Priority != 0 {
		o.Priority = &p.Priority
	}
	if !p.Timestamp.IsZero() {
		if p.Timestamp.Unix() < 0 {
			return nil, invalidOption("`Timestamp` is before 1970, which AMQP cannot represent")
		}
		o.Timestamp = to(uint64(p.Timestamp.Unix()))
	}
	if p.Headers != nil {
		headers, err := appendTable([]byte{}, p.Headers, "Headers", 0)
		if err != nil {
			return nil, err
		}
		o.Headers = headers
	}
	return o, nil
}

// The longest timeout of the core.
const longestTimeout = 365 * 24 * time.Hour

func to[T any](v T) *T { return &v }
