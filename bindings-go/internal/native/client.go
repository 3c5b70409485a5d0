package native

/*
#include "shim.h"
*/
import "C"

// Client is a connected client.
type Client struct{ object }

// ConnectOptions is what a connection is told. Its texts must be valid UTF-8, as all texts.
type ConnectOptions struct {
	URL, AppVersion, QueueType string
	Wait, EndWhenRefused       bool
	// Credentials is the number that AddCredentialProvider gave; 0 if there is no function.
	Credentials uint64
}

// Connect begins to connect.
func Connect(options *ConnectOptions) (*Operation, error) {
	var w Writer
	w.String(options.URL)
	w.String(options.AppVersion)
	w.OptionalString(options.QueueType)
	w.Bool(options.Wait)
	w.Bool(options.EndWhenRefused)
	w.Uint64(options.Credentials)
	return begin(func(ticket uint64) C.rr_answer {
		bytes, n := lend(w.B)
		return C.rr_connect(bytes, n, C.uint64_t(ticket))
	})
}

// Subscribe begins to consume. The listener's number is 0 if there is none.
func (c *Client) Subscribe(options *Options, listener uint64) (*Operation, error) {
	if !c.enter() {
		return nil, ErrFreed
	}
	defer c.leave()
	if !options.enter() {
		return nil, ErrFreed
	}
	defer options.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_client_subscribe(C.uint64_t(c.handle), C.uint64_t(options.handle), C.uint64_t(listener),
			C.uint64_t(ticket))
	})
}

// Publish begins to publish.
func (c *Client) Publish(message *Outgoing) (*Operation, error) {
	if !c.enter() {
		return nil, ErrFreed
	}
	defer c.leave()
	if len(message.Body) > maxBytes {
		return nil, errTooLarge
	}
	envelope := message.envelope()
	return begin(func(ticket uint64) C.rr_answer {
		bytes, n := lend(envelope)
		body, size := lend(message.Body)
		return C.rr_client_publish(C.uint64_t(c.handle), bytes, n, body, size, C.uint64_t(ticket))
	})
}

// Parked begins a walk through what is parked for a queue.
func (c *Client) Parked(queue string) (*Operation, error) {
	if !c.enter() {
		return nil, ErrFreed
	}
	defer c.leave()
	return begin(func(ticket uint64) C.rr_answer {
		bytes, n := lend([]byte(queue))
		return C.rr_client_parked(C.uint64_t(c.handle), bytes, n, C.uint64_t(ticket))
	})
}

// Close begins to close both connections.
func (c *Client) Close() (*Operation, error) {
	if !c.enter() {
		return nil, ErrFreed
	}
	defer c.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_client_close(C.uint64_t(c.handle), C.uint64_t(ticket))
	})
}

// MetricsText is all counters in the OpenMetrics text format.
func (c *Client) MetricsText() string {
	if !c.enter() {
		return ""
	}
	defer c.leave()
	text, err := bytesOf(C.rr_client_metrics_text(C.uint64_t(c.handle)))
	if err != nil {
		return ""
	}
	return string(text)
}

// Trouble is why a connection is not open; empty when both are.
func (c *Client) Trouble() (string, error) {
	if !c.enter() {
		return "", ErrFreed
	}
	defer c.leave()
	answer, err := bytesOf(C.rr_client_trouble(C.uint64_t(c.handle)))
	if err != nil {
		return "", err
	}
	r := NewReader(answer)
	trouble := r.OptionalString()
	return trouble, r.End()
}

// CheckEnd is why the client ended by itself; nil if it did not.
func (c *Client) CheckEnd() error {
	if !c.enter() {
		return ErrFreed
	}
	defer c.leave()
	_, err := valueOf(C.rr_client_check_end(C.uint64_t(c.handle)))
	return err
}

// Reconnects is how often a connection was lost and reconnected.
func (c *Client) Reconnects() uint64 {
	if !c.enter() {
		return 0
	}
	defer c.leave()
	count, _ := valueOf(C.rr_client_reconnects(C.uint64_t(c.handle)))
	return count
}

// Server is what the broker said of itself.
func (c *Client) Server() (product, version string) {
	if !c.enter() {
		return "", ""
	}
	defer c.leave()
	said, err := bytesOf(C.rr_client_server(C.uint64_t(c.handle)))
	if err != nil {
		return "", ""
	}
	r := NewReader(said)
	r.Count()
	return r.String(), r.String()
}

// Walk is a walk through parked messages.
type Walk struct{ object }

// Next begins to fetch the next one.
func (w *Walk) Next() (*Operation, error) {
	if !w.enter() {
		return nil, ErrFreed
	}
	defer w.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_walk_next(C.uint64_t(w.handle), C.uint64_t(ticket))
	})
}

// Replay begins to send one back.
func (w *Walk) Replay(number uint64) (*Operation, error) {
	if !w.enter() {
		return nil, ErrFreed
	}
	defer w.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_walk_replay(C.uint64_t(w.handle), C.uint64_t(number), C.uint64_t(ticket))
	})
}

// ReplayTo begins to send one to a queue.
func (w *Walk) ReplayTo(number uint64, queue string) (*Operation, error) {
	if !w.enter() {
		return nil, ErrFreed
	}
	defer w.leave()
	return begin(func(ticket uint64) C.rr_answer {
		bytes, n := lend([]byte(queue))
		return C.rr_walk_replay_to(C.uint64_t(w.handle), C.uint64_t(number), bytes, n, C.uint64_t(ticket))
	})
}

// WalkStatus is what is known of a walk beside its messages.
type WalkStatus struct {
	Remaining, Others, Missed uint32
	Warning                   string
}

// Status asks for it.
func (w *Walk) Status() (WalkStatus, error) {
	if !w.enter() {
		return WalkStatus{}, ErrFreed
	}
	defer w.leave()
	answer, err := bytesOf(C.rr_walk_status(C.uint64_t(w.handle)))
	if err != nil {
		return WalkStatus{}, err
	}
	r := NewReader(answer)
	status := WalkStatus{Remaining: r.Uint32(), Others: r.Uint32(), Missed: r.Uint32(), Warning: r.OptionalString()}
	return status, r.End()
}

// Discard begins to drop one.
func (w *Walk) Discard(number uint64) (*Operation, error) {
	if !w.enter() {
		return nil, ErrFreed
	}
	defer w.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_walk_discard(C.uint64_t(w.handle), C.uint64_t(number), C.uint64_t(ticket))
	})
}

// Forget says that nobody can ask for this message any more. After the walk it does nothing.
func (w *Walk) Forget(number uint64) {
	if !w.enter() {
		return
	}
	defer w.leave()
	_, _ = valueOf(C.rr_walk_forget(C.uint64_t(w.handle), C.uint64_t(number)))
}

// Close begins to end the walk.
func (w *Walk) Close() (*Operation, error) {
	if !w.enter() {
		return nil, ErrFreed
	}
	defer w.leave()
	return begin(func(ticket uint64) C.rr_answer {
		return C.rr_walk_close(C.uint64_t(w.handle), C.uint64_t(ticket))
	})
}

// History reads the last failures from headers as AMQP writes them, and gives them as JSON.
func History(headers []byte) ([]byte, error) {
	bytes, n := lend(headers)
	return bytesOf(C.rr_history(bytes, n))
}
