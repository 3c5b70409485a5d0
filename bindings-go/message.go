package retryrmq

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Message is a message as its handler gets it. It and its fields may be kept after the handler returns. Keeping Body also keeps the headers in
// memory.
type Message struct {
	// Body is the body, as it was published.
	Body []byte
	// Exchange is the exchange the message was first published to; empty for the default exchange.
	Exchange string
	// RoutingKey is the routing key the message was first published with.
	RoutingKey string
	// MessageID is the id that the publisher gave it; empty without one.
	MessageID string
	// Queue is the work queue it came from.
	Queue string
	// Attempt is the number of this attempt: 1 on first delivery.
	Attempt int
	// Retries is how many attempts failed before this one: Attempt − 1.
	Retries int
	// FirstFailedAt is when the first attempt failed, in whole seconds; zero if none has failed.
	FirstFailedAt time.Time
	// LastError is the error of the last failed attempt; empty if none has failed.
	LastError string
	// Replays is how often the message was replayed from the parking queue.
	Replays int
	// Redelivered reports whether the broker has delivered this message before (AMQP redelivered).
	Redelivered bool
	// Mended is damage that was repaired so that the message could be read, such as names that are not UTF-8 or tables nested too deeply;
	// mostly empty. If the handler fails on such a message, it is parked as undecodable at once.
	Mended string

	token      uint64
	mayPark    bool
	properties []byte
	headers    []byte
	once       sync.Once
	table      Table
}

// Headers returns all headers. They include the headers of the broker and the x-retry-* headers of this library. The first call reads them.
func (m *Message) Headers() Table {
	m.once.Do(func() { m.table = readTable(m.headers) })
	return m.table
}

// Properties are the AMQP properties of a message, without its headers. A property that is not set is empty or zero.
type Properties struct {
	ContentType, ContentEncoding   string
	CorrelationID, ReplyTo         string
	Expiration                     string // in milliseconds, as text
	MessageID, Type, UserID, AppID string
	ClusterID                      string
	DeliveryMode                   uint8 // 2 is persistent
	Priority                       uint8
	Timestamp                      time.Time
}

// Properties are all properties, as they were published.
func (m *Message) Properties() Properties {
	var p Properties
	texts := [...]*string{&p.ContentType, &p.ContentEncoding, &p.CorrelationID, &p.ReplyTo, &p.Expiration, &p.MessageID,
		&p.Type, &p.UserID, &p.AppID, &p.ClusterID}
	r := tableReader{m.properties}
	for len(r.rest) > 0 {
		switch number := r.number(1); number {
		case 10:
			p.DeliveryMode = uint8(r.number(1))
		case 11:
			p.Priority = uint8(r.number(1))
		case 12:
			if b := r.take(8); b != nil {
				p.Timestamp = unix(binary.LittleEndian.Uint64(b))
			}
		default:
			text := string(r.take(int(r.number(1))))
			if int(number) < len(texts) {
				*texts[number] = text
			}
		}
	}
	return p
}

// Failure is one failed attempt in a message's history.
type Failure struct {
	// Attempt is the number of the attempt; 1 is the first delivery.
	Attempt int
	// At is when it failed, in whole seconds.
	At time.Time
	// Error is the error, one line.
	Error string
	// Host is the host name of the consumer.
	Host string
	// AppVersion is the version of the consuming application, as given with [AppVersion]; empty if it was not.
	AppVersion string
}

// A failure as the native half writes it.
type failureRow struct {
	Attempt    int    `json:"attempt"`
	At         uint64 `json:"at"` // seconds since 1970
	Error      string `json:"error"`
	Host       string `json:"host"`
	AppVersion string `json:"app_version"`
}

// History returns the last failures, at most ten, oldest first.
func (m *Message) History() []Failure {
	written, err := native.History(m.headers)
	if err != nil {
		return nil
	}
	var entries []failureRow
	if json.Unmarshal(written, &entries) != nil {
		return nil
	}
	history := make([]Failure, len(entries))
	for i, e := range entries {
		history[i] = Failure{e.Attempt, unix(e.At), e.Error, e.Host, e.AppVersion}
	}
	return history
}

// String names the message, without its body.
func (m *Message) String() string {
	return fmt.Sprintf("message %q of %q (attempt %d, %d bytes)", m.MessageID, m.Queue, m.Attempt, len(m.Body))
}

// LogValue is the form that slog logs, without the body.
func (m *Message) LogValue() slog.Value {
	return slog.GroupValue(slog.String("queue", m.Queue), slog.String("id", m.MessageID), slog.Int("attempt", m.Attempt),
		slog.Int("bytes", len(m.Body)))
}

const (
	flagRedelivered = 1
	flagMayPark     = 2
	flagHasFailed   = 8
)

// The parts of a message, in their order; their sizes come before them. The picture is in bindings-common/src/message_codec.rs.
const (
	partExchange = iota
	partRoutingKey
	partMessageID
	partLastError
	partMended
	partProperties
	partHeaders
	partBody
	partCount

	sizesAt = 32
	partsAt = sizesAt + 4*partCount
)

var errShortBatch = errorKind(ErrFault.Code, "a batch is cut short; this is a bug in retryrmq")

// Reads a batch. Each message has its own memory: a handler may keep one for long, and that must not keep the others.
func readBatch(batch []byte, queue string) ([]*Message, error) {
	count := 0
	for rest := batch; len(rest) > 0; count++ {
		size := messageSize(rest)
		if size == 0 {
			return nil, errShortBatch
		}
		rest = rest[size:]
	}
	messages := make([]*Message, count)
	var before messageTexts
	for i := range messages {
		size := messageSize(batch)
		if messages[i] = before.message(batch[:size], queue); messages[i] == nil {
			return nil, errShortBatch
		}
		batch = batch[size:]
	}
	return messages, nil
}

// The tokens of the messages of a batch, up to one that is cut short.
func tokensOf(batch []byte) native.Tokens {
	var tokens native.Tokens
	for size := messageSize(batch); size > 0; size = messageSize(batch) {
		tokens.Add(binary.LittleEndian.Uint64(batch[8:]))
		batch = batch[size:]
	}
	return tokens
}

// Reads a batch of one.
func readMessage(batch []byte, queue string) (*Message, error) {
	messages, err := readBatch(batch, queue)
	if err == nil && len(messages) != 1 {
		err = errShortBatch
	}
	if err != nil {
		return nil, err
	}
	return messages[0], nil
}

// The size of the first message; 0 if it is not whole.
func messageSize(b []byte) int {
	if len(b) < partsAt {
		return 0
	}
	size := binary.LittleEndian.Uint32(b)
	if size < partsAt || uint64(size) > uint64(len(b)) {
		return 0
	}
	return int(size)
}

// Those of the message before; the next one often has the same.
type messageTexts struct{ exchange, routingKey string }

// A text. If it equals the one before, that one is reused.
func sameOr(b []byte, before *string) string {
	if string(b) != *before {
		*before = string(b)
	}
	return *before
}

// The message whose bytes these are; nil if they are not.
func (before *messageTexts) message(b []byte, queue string) *Message {
	le := binary.LittleEndian
	var ends [partCount]int
	at := partsAt
	for part := range ends {
		size := le.Uint32(b[sizesAt+4*part:])
		if uint64(size) > uint64(len(b)-at) {
			return nil
		}
		at += int(size)
		ends[part] = at
	}
	if at != len(b) {
		return nil
	}
	flags := le.Uint32(b[4:])
	m := &Message{
		Queue:       queue,
		Exchange:    sameOr(b[partsAt:ends[partExchange]], &before.exchange),
		RoutingKey:  sameOr(b[ends[partExchange]:ends[partRoutingKey]], &before.routingKey),
		MessageID:   string(b[ends[partRoutingKey]:ends[partMessageID]]),
		LastError:   string(b[ends[partMessageID]:ends[partLastError]]),
		Mended:      string(b[ends[partLastError]:ends[partMended]]),
		Attempt:     int(le.Uint32(b[24:])),
		Retries:     int(le.Uint32(b[24:])) - 1,
		Replays:     int(le.Uint32(b[28:])),
		Redelivered: flags&flagRedelivered != 0,
		mayPark:     flags&flagMayPark != 0,
		token:       le.Uint64(b[8:]),
	}
	if flags&flagHasFailed != 0 {
		m.FirstFailedAt = unix(le.Uint64(b[16:]))
	}
	begin := ends[partMended]
	own := make([]byte, len(b)-begin)
	copy(own, b[begin:])
	properties, headers := ends[partProperties]-begin, ends[partHeaders]-begin
	m.properties, m.headers, m.Body = own[:properties:properties], own[properties:headers:headers], own[headers:]
	return m
}
