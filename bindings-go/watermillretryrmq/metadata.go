package watermillretryrmq

import (
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const (
	// UUIDKey is the header with the UUID of a message, as in watermill-amqp.
	UUIDKey = "_watermill_message_uuid"
	// AttemptKey is the metadata with the number of the attempt: "1" on first delivery.
	AttemptKey = "retryrmq_attempt"
	// RedeliveredKey is the metadata that is "true" if the broker has delivered the message before, as in watermill-amqp.
	RedeliveredKey = "_watermill_amqp_redelivered"
)

// What belongs to a delivery. A handler that publishes a copy of its message must not pass it on.
func isOfDelivery(key string) bool {
	for _, prefix := range []string{"x-retry-", "x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count"} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return key == AttemptKey || key == RedeliveredKey
}

// The message as Watermill has it. Metadata is text, so numbers and booleans become text; what has no text is left out.
func received(m *retryrmq.Message) *message.Message {
	headers := m.Headers()
	id, ok := headers[UUIDKey].(string)
	if !ok {
		id = m.MessageID
	}
	msg := message.NewMessage(id, m.Body)
	for key, value := range headers {
		if key == UUIDKey || isOfDelivery(key) {
			continue
		}
		switch value := value.(type) {
		case string:
			msg.Metadata[key] = value
		case bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, float32, float64:
			msg.Metadata[key] = fmt.Sprint(value)
		}
	}
	msg.Metadata[AttemptKey] = fmt.Sprint(m.Attempt)
	if m.Redelivered {
		msg.Metadata[RedeliveredKey] = "true"
	}
	return msg
}

func published(msg *message.Message) retryrmq.Publishing {
	headers := retryrmq.Table{UUIDKey: msg.UUID}
	for key, value := range msg.Metadata {
		if !isOfDelivery(key) {
			headers[key] = value
		}
	}
	return retryrmq.Publishing{MessageID: msg.UUID, Headers: headers, Body: msg.Payload}
}
