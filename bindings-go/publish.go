package retryrmq

import (
	"context"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Publishing is a message to publish. Its zero values are the safe ones: persistent, and an error if no queue takes it.
type Publishing struct {
	// Exchange is where to; empty is the default exchange, by which the routing key is the name of a queue.
	Exchange string
	// RoutingKey is the name of a queue, or whatever the exchange makes of it.
	RoutingKey string
	// Body is any bytes.
	Body []byte
	// Headers are any that AMQP can say.
	Headers Table
	// Delay delivers the message later; only through the default exchange, and only to a queue that exists: otherwise the error
	// is [ErrQueueNotFound], and not ErrUnroutable.
	Delay time.Duration
	// Optional: it is no error when no queue takes the message (AMQP's mandatory, switched off).
	Optional bool
	// Transient: the message does not survive a restart of the broker.
	Transient bool
	// MessageID is the message's id, by which a redelivery of a handled message is recognised.
	MessageID string
	// ContentType is a MIME type such as application/json.
	ContentType string
	// ContentEncoding is an encoding such as gzip.
	ContentEncoding string
	// CorrelationID is for replies.
	CorrelationID string
	// ReplyTo is for replies.
	ReplyTo string
	// Expiration: the broker drops (or dead-letters) the message when it has waited that long in a queue, in milliseconds,
	// rounded up; 0 for never.
	Expiration time.Duration
	// Priority is 0 to 255.
	Priority uint8
	// Timestamp is kept to the second.
	Timestamp time.Time
	// Type is the application's name for the kind of message.
	Type string
	// AppID is the application's name.
	AppID string
	// UserID must be the connection's own user.
	UserID string
}

// Publish publishes a message and waits until the broker has confirmed it. When ctx ends before, its error is returned, and
// the message may be published all the same.
func (c *Conn) Publish(ctx context.Context, message Publishing) error {
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
	defer c.leave()
	if ctx.Err() != nil {
		return native.ContextError(ctx)
	}
	op, err := c.client.Publish(outgoing)
	if err != nil {
		return ours(err)
	}
	return ours(op.Wait(ctx))
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
		if err := checkSpan(span.name, span.d); err != nil {
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
			return nil, badOption("`Timestamp` lies before 1970, which AMQP cannot say")
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

func to[T any](v T) *T { return &v }
