package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

type step struct {
	Do      string
	Type    string
	Message string
	Reason  string
	Within  string
	DelayMS int64 `json:"delay_ms"`
	SleepMS int64 `json:"sleep_ms"`
}

// An error whose type is what the scenario says.
type typed struct{ kind, message string }

func (t typed) Error() string     { return t.message }
func (t typed) ErrorType() string { return t.kind }

// An error that the consumer's options call fatal.
type hopeless struct{ message string }

func (h hopeless) Error() string { return h.message }

type player struct {
	mu    sync.Mutex
	steps map[string][]step
	runs  map[string]int
}

func newPlayer(steps map[string][]step, runs map[string]int) *player {
	if runs == nil {
		runs = map[string]int{}
	}
	return &player{steps: steps, runs: runs}
}

func (p *player) next(id string) (int, step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[id]++
	run, steps := p.runs[id], p.steps[id]
	if len(steps) == 0 {
		return run, step{Do: "ok"}
	}
	return run, steps[min(run, len(steps))-1]
}

// Which message of the scenario it is.
func identity(m *retryrmq.Message) string {
	if id, ok := m.Headers()["scenario-id"].(string); ok {
		return id
	}
	return m.MessageID
}

func (p *player) handle(ctx context.Context, m *retryrmq.Message) error {
	id := identity(m)
	run, step := p.next(id)
	say(attempt(id, run, m))
	if step.SleepMS > 0 {
		select {
		case <-time.After(milliseconds(step.SleepMS)):
		case <-ctx.Done():
		}
	}
	if step.Do == "exit" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	// The library has ended this attempt already, and counts from then.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	say(map[string]any{"line": "settled", "id": id, "run": run, "at_ms": time.Now().UnixMilli()})
	return step.end()
}

func (s step) end() error {
	switch s.Do {
	case "ok":
		return nil
	case "error":
		if s.Type == "" {
			return errors.New(s.Message)
		}
		return typed{s.Type, s.Message}
	case "fatal":
		return hopeless{s.Message}
	case "retry_after":
		return retryrmq.After(errors.New(s.Message), milliseconds(s.DelayMS))
	case "park":
		if s.Within != "" {
			return fmt.Errorf("%s: %w", s.Within, retryrmq.Park(s.Reason))
		}
		return retryrmq.Park(s.Reason)
	case "defer":
		return retryrmq.Defer(milliseconds(s.DelayMS))
	case "panic":
		panic(s.Message)
	}
	return errors.New("there is no step " + s.Do)
}

func attempt(id string, run int, m *retryrmq.Message) map[string]any {
	digest := sha256.Sum256(m.Body)
	line := map[string]any{
		"line": "attempt", "id": id, "run": run, "at_ms": time.Now().UnixMilli(),
		"attempt": m.Attempt, "retries": m.Retries, "queue": m.Queue, "exchange": m.Exchange,
		"routing_key": m.RoutingKey, "redelivered": m.Redelivered, "headers": m.Headers(), "properties": properties(m),
		"body_bytes": len(m.Body), "body_sha256": hex.EncodeToString(digest[:]),
		"message_id": none(m.MessageID), "last_error": none(m.LastError), "mended": none(m.Mended), "first_failed_at_ms": nil,
	}
	if !m.FirstFailedAt.IsZero() {
		line["first_failed_at_ms"] = m.FirstFailedAt.UnixMilli()
	}
	return line
}

func none(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// The properties that are set, by their AMQP names.
func properties(m *retryrmq.Message) map[string]any {
	p := m.Properties()
	set := map[string]any{}
	for name, text := range map[string]string{"content_type": p.ContentType, "content_encoding": p.ContentEncoding,
		"correlation_id": p.CorrelationID, "reply_to": p.ReplyTo, "expiration": p.Expiration, "message_id": p.MessageID,
		"type": p.Type, "user_id": p.UserID, "app_id": p.AppID, "cluster_id": p.ClusterID} {
		if text != "" {
			set[name] = text
		}
	}
	if p.DeliveryMode != 0 {
		set["delivery_mode"] = p.DeliveryMode
	}
	if p.Priority != 0 {
		set["priority"] = p.Priority
	}
	if !p.Timestamp.IsZero() {
		set["timestamp"] = p.Timestamp.Unix()
	}
	return set
}

var (
	speaking sync.Mutex
	over     bool // nothing comes after `done`, whoever still logs
	out      = json.NewEncoder(os.Stdout)
)

func say(line map[string]any) {
	speaking.Lock()
	defer speaking.Unlock()
	if over {
		return
	}
	over = line["line"] == "done"
	if err := out.Encode(line); err != nil {
		// A line that said less would pass for what the library gave.
		fmt.Fprintf(os.Stderr, "the line %v cannot be written: %v\n", line, err)
		os.Exit(1)
	}
}
