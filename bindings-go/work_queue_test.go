package retryrmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// Has the queue consumed until it stands.
func (s *fixture) subscribe(queue string, options ...retryrmq.Option) {
	s.t.Helper()
	ready := make(chan struct{})
	c := s.consume(s.dial(), queue, handled, append(options, retryrmq.OnReady(func() { close(ready) }))...)
	select {
	case <-ready:
	case err := <-c.err:
		s.t.Fatal(err)
	case <-time.After(120 * time.Second):
		s.t.Fatal("it does not stand")
	}
	if err := c.end(); err != nil {
		s.t.Error(err)
	}
}

func TestAMissingQueueIsMadeAsItsPublisherDeclaresIt(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		publisher, err := amqp.Dial(s.url)
		if err != nil {
			t.Fatal(err)
		}
		defer publisher.Close()
		for name, arguments := range map[string]amqp.Table{
			"none":   nil,
			"no-one": {},
			"some": {"x-max-priority": 10, "x-message-ttl": int64(86_400_000), "x-single-active-consumer": true,
				"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere"},
			"typed": {"x-queue-type": "classic", "x-max-length": int32(1000)},
		} {
			s.subscribe(name, retryrmq.DLX(), retryrmq.WorkQueue(arguments))
			channel, err := publisher.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := channel.QueueDeclare(name, true, false, false, false, arguments); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := channel.QueueDeclare(name, true, false, false, false, amqp.Table{"x-max-priority": 9}); err == nil {
				t.Errorf("%s: the broker takes other arguments", name)
			}
		}
	})
}

func TestAMissingQueueIsOfATypeOrNeverMade(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		queues := func() (all []struct {
			Name      string
			Type      string
			Arguments map[string]any
		}) {
			if err := json.Unmarshal(s.manage("GET", "/api/queues/"+s.vhost+"?columns=name,type,arguments", nil), &all); err != nil {
				t.Error(err)
			}
			return all
		}
		for _, options := range [][]retryrmq.Option{{retryrmq.DLX()}, {}} {
			err := s.dial().Consume(t.Context(), "orders", handled, append(options, retryrmq.WorkQueue(retryrmq.Existing))...)
			if !errors.Is(err, retryrmq.ErrQueueNotFound) || len(options) > 0 && !strings.Contains(err.Error(), "`WorkQueue` is `existing`") {
				t.Errorf("got %v", err)
			}
		}
		if made := queues(); len(made) != 0 {
			t.Errorf("%v", made)
		}
		s.subscribe("orders", retryrmq.DLX(), retryrmq.WorkQueue(retryrmq.Classic))
		for _, queue := range queues() {
			if queue.Name == "orders" && (queue.Type != "classic" || queue.Arguments["x-dead-letter-routing-key"] != "orders.parked") {
				t.Errorf("%+v", queue)
			}
		}
		s.subscribe("orders", retryrmq.DLX(), retryrmq.WorkQueue("existing"))
	})
}

func TestADeletedQueueIsNotMadeAgainUnlessAskedFor(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		var log safeBuffer
		conn := s.dial(retryrmq.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		s.queue("orders", "classic")
		ready := make(chan struct{})
		var seen ledger
		c := s.consume(conn, "orders", func(_ context.Context, m *retryrmq.Message) error {
			seen.saw(m)
			return nil
		}, retryrmq.DLX(), retryrmq.OnReady(sync.OnceFunc(func() { close(ready) })))
		<-ready
		s.manage("DELETE", "/api/queues/"+s.vhost+"/orders", nil)
		eventually(t, "it is missed", func() bool { return strings.Contains(log.String(), "cannot consume") })
		var queues []struct{ Name string }
		if err := json.Unmarshal(s.manage("GET", "/api/queues/"+s.vhost+"?columns=name", nil), &queues); err != nil {
			t.Error(err)
		}
		for _, queue := range queues {
			if queue.Name == "orders" {
				t.Error("it is there again")
			}
		}
		// Its owner makes it anew, with other arguments than ours.
		s.queueWith("orders", map[string]any{"x-max-priority": 3})
		s.publish(conn, "orders", "a")
		eventually(t, "it is consumed again", func() bool { return seen.bodies() == 1 })
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestAWorkQueueThatCannotBeMadeSaysWhy(t *testing.T) {
	dlx := []retryrmq.Option{retryrmq.DLX()}
	for said, option := range map[string]retryrmq.Option{
		"`` is none of quorum":      retryrmq.WorkQueue(""),
		"no retryrmq.Table":         retryrmq.WorkQueue("lazy"),
		"valid UTF-8: \"\\xff\"":    retryrmq.WorkQueue("\xff"),
		"valid UTF-8: \"\\xfe\"":    retryrmq.WorkQueue(retryrmq.Table{"\xfe": 1}),
		"valid UTF-8: \"\\xfd\"":    retryrmq.WorkQueue(retryrmq.Table{"x": "\xfd"}),
		"\"x-half\" must be":        retryrmq.WorkQueue(retryrmq.Table{"x-half": 0.5}),
		"\"x-nothing\" must be":     retryrmq.WorkQueue(retryrmq.Table{"x-nothing": nil}),
		"\"x-more\" must be":        retryrmq.WorkQueue(retryrmq.Table{"x-more": retryrmq.Table{}}),
		"\"x-large\" must be":       retryrmq.WorkQueue(retryrmq.Table{"x-large": uint64(math.MaxUint64)}),
		"which are 60000":           retryrmq.WorkQueue(retryrmq.Table{"x-message-ttl": time.Minute}),
		"stream cannot be":          retryrmq.WorkQueue(retryrmq.Table{"x-queue-type": "stream"}),
		"255":                       retryrmq.WorkQueue(retryrmq.Table{strings.Repeat("x", 256): 1}),
		"`WorkQueue` needs `DLX`, ": nil,
	} {
		options := append(dlx, option)
		if option == nil {
			options = []retryrmq.Option{retryrmq.WorkQueue(map[string]any{})}
		}
		_, err := retryrmq.NewSimulation("orders", handled, options...)
		var ours *retryrmq.Error
		if !errors.As(err, &ours) || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", said, err)
		}
	}
}
