// Plays scenarios with the Go module retryrmq: the driver contract of tests/scenarios/README.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// All steps and options that the module has.
var can = []string{"error", "error_type", "fatal", "retry_after", "park", "defer", "panic", "exit", "rules",
	"handler_timeout", "pause", "declare", "queue_type", "prefetch_bytes", "crash_limit", "defer_limit", "no_park", "wrapped_park", "log", "mended", "whole_headers", "replay", "records", "publish", "events",
	"refused"}

type order struct {
	Task     string
	URL      string
	Queue    string
	Consume  options
	Handler  map[string][]step
	Runs     map[string]int
	Messages []outgoing
}

type options struct {
	DLX              bool
	Retry            *string
	Strategy         *string
	Rules            []string
	Prefetch         *int
	Concurrency      *int
	HandlerTimeoutMS *int64 `json:"handler_timeout_ms"`
	Pause            *struct {
		Window int
		Share  float64
		ForMS  int64 `json:"for_ms"`
	}
	Park          *bool
	Declare       *bool
	QueueType     *string `json:"queue_type"`
	PrefetchBytes *int64  `json:"prefetch_bytes"`
	CrashLimit    *int    `json:"crash_limit"`
	DeferLimit    *int    `json:"defer_limit"`
	Fatal         *bool
}

type outgoing struct {
	ID         string
	Exchange   string
	RoutingKey string `json:"routing_key"`
	Body       string
	Headers    map[string]any
	DelayMS    *int64 `json:"delay_ms"`
}

func main() {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch o.Task {
	case "describe":
		say(map[string]any{"line": "driver", "name": "go", "can": can})
	case "consume":
		err = consume(ctx, o)
	case "replay":
		err = replay(ctx, o)
	case "publish":
		err = publish(ctx, o)
	default:
		err = fmt.Errorf("there is no task %q", o.Task)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func consume(ctx context.Context, o order) error {
	err := consuming(ctx, o)
	var refused *retryrmq.Error
	if errors.As(err, &refused) {
		say(map[string]any{"line": "refused", "code": refused.Code, "message": refused.Message})
		return nil
	}
	if err == nil {
		say(map[string]any{"line": "done"})
	}
	return err
}

func consuming(ctx context.Context, o order) error {
	dial := []retryrmq.DialOption{retryrmq.Logger(slog.New(tellingHandler{}))}
	if o.Consume.QueueType != nil {
		dial = append(dial, retryrmq.QueueType(retryrmq.QueueTypeName(*o.Consume.QueueType)))
	}
	conn, err := retryrmq.Dial(ctx, o.URL, dial...)
	if err != nil {
		return err
	}
	defer conn.Close()
	chosen, err := chosen(o.Consume)
	if err != nil {
		return err
	}
	player := newPlayer(o.Handler, o.Runs)
	return conn.Consume(ctx, o.Queue, player.handle, chosen...)
}

// Tells every line of the package's log.
type tellingHandler struct{}

func (tellingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (tellingHandler) Handle(_ context.Context, r slog.Record) error {
	say(map[string]any{"line": "log", "level": strings.ToLower(r.Level.String()), "text": r.Message})
	return nil
}

func (h tellingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h tellingHandler) WithGroup(string) slog.Handler      { return h }

func chosen(o options) ([]retryrmq.Option, error) {
	chosen := []retryrmq.Option{
		retryrmq.OnReady(func() { say(map[string]any{"line": "ready"}) }),
		retryrmq.OnEvent(func(event retryrmq.Event) {
			say(map[string]any{
				"line": "event", "kind": event.Name, "queue": event.Queue, "error": event.Error,
				"to": event.To, "count": event.Count, "cause": event.Cause,
			})
		}),
	}
	if o.DLX {
		chosen = append(chosen, retryrmq.DLX())
	}
	if o.Fatal == nil && o.DLX || o.Fatal != nil && *o.Fatal { // it needs retries
		chosen = append(chosen, retryrmq.Fatal(func(err error) bool { return errors.As(err, new(hopeless)) }))
	}
	if o.Retry != nil {
		policy, err := retryrmq.ParsePolicy(*o.Retry)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, retryrmq.Retry(policy))
	}
	if o.Strategy != nil {
		chosen = append(chosen, retryrmq.Strategy(retryrmq.StrategyName(*o.Strategy)))
	}
	for _, text := range o.Rules {
		rule, err := retryrmq.ParseRule(text)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, retryrmq.Rules(rule))
	}
	if o.PrefetchBytes != nil {
		chosen = append(chosen, retryrmq.PrefetchBytes(*o.PrefetchBytes))
	}
	numbers := []struct {
		number *int
		option func(int) retryrmq.Option
	}{{o.Prefetch, retryrmq.Prefetch}, {o.Concurrency, retryrmq.Concurrency}, {o.CrashLimit, retryrmq.CrashLimit},
		{o.DeferLimit, retryrmq.DeferLimit}}
	for _, number := range numbers {
		if number.number != nil {
			chosen = append(chosen, number.option(*number.number))
		}
	}
	if o.HandlerTimeoutMS != nil {
		chosen = append(chosen, retryrmq.HandlerTimeout(milliseconds(*o.HandlerTimeoutMS)))
	}
	if o.Pause != nil {
		chosen = append(chosen, retryrmq.Pause(o.Pause.Share, o.Pause.Window, milliseconds(o.Pause.ForMS)))
	}
	if o.Park != nil && !*o.Park {
		chosen = append(chosen, retryrmq.NoParking())
	}
	if o.Declare != nil && !*o.Declare {
		chosen = append(chosen, retryrmq.NoDeclare())
	}
	return chosen, nil
}

func replay(ctx context.Context, o order) error {
	conn, err := retryrmq.Dial(ctx, o.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	for parked, err := range conn.Parked(ctx, o.Queue) {
		if err != nil {
			return err
		}
		say(map[string]any{"line": "parked", "id": identity(parked.Message), "reason": none(parked.Reason), "by_broker": parked.ByBroker,
			"home": parked.Home, "error": parked.Error, "error_type": parked.ErrorType, "attempts": parked.Attempts})
		if err := parked.Replay(ctx); err != nil {
			return err
		}
	}
	return nil
}

func publish(ctx context.Context, o order) error {
	conn, err := retryrmq.Dial(ctx, o.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, message := range o.Messages {
		headers := retryrmq.Table{}
		for name, value := range message.Headers {
			if number, ok := value.(float64); ok {
				value = int64(number)
			}
			headers[name] = value
		}
		publishing := retryrmq.Publishing{Exchange: message.Exchange, RoutingKey: message.RoutingKey,
			Body: []byte(message.Body), Headers: headers}
		if message.DelayMS != nil {
			publishing.Delay = milliseconds(*message.DelayMS)
		}
		at := time.Now().UnixMilli()
		if err := conn.Publish(ctx, publishing); err != nil {
			return err
		}
		say(map[string]any{"line": "published", "id": message.ID, "at_ms": at})
	}
	return nil
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
