package otelretryrmq

import (
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// The name of a destination, as the conventions for RabbitMQ have it: its parts that are not empty.
func joined(parts ...string) string {
	if name := strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ":"); name != "" {
		return name
	}
	return "amq.default"
}

// The attributes of these that the message has.
func given(routingKey, messageID, correlationID string) (attributes []attribute.KeyValue) {
	if routingKey != "" {
		attributes = append(attributes, semconv.MessagingRabbitMQDestinationRoutingKey(routingKey))
	}
	if messageID != "" {
		attributes = append(attributes, semconv.MessagingMessageID(messageID))
	}
	if correlationID != "" {
		attributes = append(attributes, semconv.MessagingMessageConversationID(correlationID))
	}
	return attributes
}

// Records an error, and returns its type. Methods of the error are user code, which may panic: that is no reason to fail an attempt.
func failed(span trace.Span, err error, kind string) attribute.KeyValue {
	said := text(err)
	catchPanic(func() { span.RecordError(err) })
	span.SetStatus(codes.Error, said)
	errorType := semconv.ErrorTypeKey.String("Park") // which has none in a record
	if kind != "" {
		errorType = semconv.ErrorTypeKey.String(kind)
	}
	span.SetAttributes(errorType)
	return errorType
}

func text(err error) (said string) {
	catchPanic(func() { said = err.Error() })
	return said
}

func catchPanic(f func()) {
	defer func() { _ = recover() }()
	f()
}

// Headers as what a propagator reads and writes.
type headers retryrmq.Table

// Get returns a header that is text; others are written by strangers.
func (h headers) Get(key string) string {
	switch value := h[key].(type) {
	case string:
		return value
	case []byte:
		return string(value)
	}
	return ""
}

func (h headers) Set(key, value string) { h[key] = value }

func (h headers) Keys() (keys []string) {
	for key := range h {
		keys = append(keys, key)
	}
	return keys
}
