package retryrmq

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Message is a message as its handler gets it. It may be kept, and so may its parts: a kept text holds no other memory, a kept body only that
// of the headers.
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
	// Mended is what had to be repaired before the message could be read, such as names that are not UTF-8 or tables nested too deeply;
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

// History returns the last failures, at most ten, oldest first.
func (m *Message) History() []Failure {
	entries, err := native.History(m.headers)
	if err != nil {
		return nil
	}
	history := make([]Failure, len(entries))
	for i, e := range entries {
		history[i] = Failure{int(e.Attempt), unix(e.At), e.Error, e.Host, e.AppVersion}
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
	flagRedelivered = 1 << iota
	flagMayPark
	flagMended = 32
)

var errShortBatch = kind(ErrFault.Code, "a batch is cut short; this is a mistake in retryrmq")

// Reads a batch. Each message has its own memory: a handler may keep one for long, and that must not keep the others.
func readBatch(batch []byte, queue string) ([]*Message, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	r := batchReader{rest: batch}
	count := int(r.uint32())
	if count > len(batch) {
		return nil, errShortBatch
	}
	messages := make([]*Message, count)
	for i := range messages {
		messages[i] = r.message(queue)
	}
	if r.bad || len(r.rest) != 0 {
		return nil, errShortBatch
	}
	return messages, nil
}

func readMessage(b []byte, queue string) (*Message, error) {
	r := batchReader{rest: b}
	m := r.message(queue)
	if r.bad || len(r.rest) != 0 {
		return nil, errShortBatch
	}
	return m, nil
}

type batchReader struct {
	rest []byte
	bad  bool
	// Those of the message before; the next one often has the same.
	exchange, routingKey string
}

func (r *batchReader) take(n int) []byte {
	if uint(n) > uint(len(r.rest)) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *batchReader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *batchReader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *batchReader) block() []byte { return r.take(int(r.uint32())) }

// A text. If it equals the one before, that one is reused.
func (r *batchReader) text(before *string) string {
	if b := r.block(); string(b) != *before {
		*before = string(b)
	}
	return *before
}

func (r *batchReader) message(queue string) *Message {
	m := &Message{Queue: queue}
	m.token = r.uint64()
	if at := r.uint64(); at != 0 {
		m.FirstFailedAt = unix(at)
	}
	m.Attempt = int(r.uint32())
	m.Retries = m.Attempt - 1
	m.Replays = int(r.uint32())
	mended := false
	if flags := r.take(1); flags != nil {
		mended = flags[0]&flagMended != 0
		m.Redelivered = flags[0]&flagRedelivered != 0
		m.mayPark = flags[0]&flagMayPark != 0
	}
	m.Exchange, m.RoutingKey = r.text(&r.exchange), r.text(&r.routingKey)
	m.MessageID, m.LastError = string(r.block()), string(r.block())
	if mended {
		m.Mended = string(r.block())
	}
	properties, headers, body := r.block(), r.block(), r.block()
	own := make([]byte, 0, len(properties)+len(headers)+len(body))
	own = append(append(append(own, properties...), headers...), body...)
	mine := batchReader{rest: own}
	m.properties, m.headers, m.Body = mine.take(len(properties)), mine.take(len(headers)), mine.take(len(body))
	return m
}
