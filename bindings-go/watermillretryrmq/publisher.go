package watermillretryrmq

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// PublisherConfig is the configuration of a [Publisher]; the zero value publishes to the queue with the topic's name.
type PublisherConfig struct {
	// Route returns where the messages of a topic go. By default that is the default exchange, with the topic as the routing key: a queue.
	Route func(topic string) (exchange, routingKey string)
}

// Publisher is a message.Publisher. Many goroutines may use it at the same time.
type Publisher struct {
	conn   *retryrmq.Conn
	config PublisherConfig
}

var errNoConn = errors.New("watermillretryrmq: the connection is nil; use that of retryrmq.Dial")

// NewPublisher returns a publisher on a connection, which stays open when the publisher is closed.
func NewPublisher(conn *retryrmq.Conn, config PublisherConfig) (*Publisher, error) {
	if conn == nil {
		return nil, errNoConn
	}
	if config.Route == nil {
		config.Route = func(topic string) (string, string) { return "", topic }
	}
	return &Publisher{conn, config}, nil
}

// Publish publishes the messages one after the other, each within its own context, and waits for each until the broker has confirmed it. It stops
// at the first that fails, with an error as of [retryrmq.Conn.Publish]: those before it are stored. It creates no queue: a message that no queue
// takes is an error.
//
// The context of a message that was received, or that a router publishes, may have ended with the handler. Of such a context only the values count,
// and Publish waits as long as it does without a deadline.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	exchange, routingKey := p.config.Route(topic)
	for _, msg := range messages {
		publishing := published(msg)
		publishing.Exchange, publishing.RoutingKey = exchange, routingKey
		if err := p.conn.Publish(publishingContext(msg), publishing); err != nil {
			return fmt.Errorf("message %s to topic %s: %w", msg.UUID, topic, err)
		}
	}
	return nil
}

// Watermill's middleware Timeout, for one, ends the context of a message before the router publishes it.
func publishingContext(msg *message.Message) context.Context {
	ctx := msg.Context()
	if attemptOf(ctx) != nil || message.HandlerNameFromCtx(ctx) != "" {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// Close does nothing: no message waits in the publisher, and the connection belongs to its owner.
func (p *Publisher) Close() error { return nil }
