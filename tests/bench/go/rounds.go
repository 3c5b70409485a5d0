package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// The core with a handler that does nothing: the limit. Its program is named by run.
const limit = "core (limit)"

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

func rounds(wanted []string) error {
	if len(wanted) == 0 {
		wanted = []string{"consume", "retry", "latency"}
	}
	url := os.Getenv("RETRYRMQ_URL")
	connection, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer connection.Close()
	fmt.Printf("RabbitMQ %v, %s, %d cores; %s\n", connection.Properties["version"], runtime.Version(), runtime.NumCPU(), versions())
	count := number("RETRYRMQ_BENCH_COUNT", 100_000)
	retried := number("RETRYRMQ_BENCH_RETRIED", max(count/5, 1))
	b := &bench{connection, url, count, retried, number("RETRYRMQ_BENCH_ROUNDS", 5)}
	for _, group := range wanted {
		switch group {
		case "consume":
			err = b.consume()
		case "batches":
			err = b.batches()
		case "retry":
			err = b.retry()
		case "latency":
			err = b.latency()
		case "storm":
			err = b.storm()
		case "outage":
			err = b.outage()
		default:
			err = fmt.Errorf("there is no group %q; there are consume, batches, retry, storm, outage and latency", group)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func versions() string {
	var peers []string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			for _, peer := range []string{"rabbitmq/amqp091-go", "ThreeDotsLabs/watermill", "ThreeDotsLabs/watermill-amqp"} {
				if dependency.Path == "github.com/"+peer {
					peers = append(peers, peer+" "+dependency.Version)
				}
			}
		}
	}
	return strings.Join(peers, ", ")
}

type bench struct {
	connection             *amqp091.Connection
	url                    string
	count, retried, rounds int
}

func (b *bench) consume() error {
	fmt.Printf("\nconsume and acknowledge %d × 256 B, prefetch %d, %d rounds\n", b.count, prefetch, b.rounds)
	names := []string{"amqp091 ack each", "amqp091 ack multiple", "watermill", "retryrmq", limit}
	return b.kinds("consume and acknowledge", "", b.count, names, func(name, kind string) (figures, error) {
		queue, err := b.full(kind, b.count)
		if err != nil {
			return nil, err
		}
		defer b.drop(queue)
		if name == limit {
			return b.run(os.Getenv("RETRYRMQ_BENCH_CORE"), "case", "retryrmq", b.url, queue, strconv.Itoa(b.count))
		}
		return b.program("consume", name, queue, b.count)
	}, "retryrmq", []aim{{"per_second", "amqp091 ack each", "≥ 1.3"}, {"per_second", "amqp091 ack multiple", "≥ 0.95"},
		{"per_second", limit, "≥ 0.9"}, {"cpu_us", "amqp091 ack each", "< 1"}})
}

func (b *bench) batches() error {
	fmt.Printf("\nconsume and acknowledge %d × 256 B, one or 100 messages for each call of the handler, prefetch %d, %d rounds\n", b.count,
		batchPrefetch, b.rounds)
	names := []string{"retryrmq", "retryrmq, batches"}
	return b.kinds("batches of 100", "", b.count, names, func(name, kind string) (figures, error) {
		queue, err := b.full(kind, b.count)
		if err != nil {
			return nil, err
		}
		defer b.drop(queue)
		return b.program("batches", name, queue, b.count)
	}, "retryrmq, batches", []aim{{"per_second", "retryrmq", "≥ 1.5"}, {"cpu_us", "retryrmq", "< 1"}})
}

func (b *bench) retry() error {
	count := b.retried
	fmt.Printf("\n%d × 256 B, each fails once and waits a second, %d outstanding, %d rounds; the consumer is there first\n", count, held, b.rounds)
	names := []string{"amqp091 by hand", "watermill Retry", "retryrmq"}
	return b.kinds("fail once", fmt.Sprintf(", %d outstanding", held), count, names, func(name, kind string) (figures, error) {
		count := count
		if name == "watermill Retry" {
			count = max(count/5000, 2) // one a second: it waits in its handler
		}
		queue, err := b.full(kind, 0, time.Second)
		if err != nil {
			return nil, err
		}
		defer b.drop(queue)
		measured := b.start("retry", name, queue, count)
		if err := b.waitForConsumer(queue); err != nil {
			return nil, err
		}
		if err := b.publish(queue, count); err != nil {
			return nil, err
		}
		return measured()
	}, "retryrmq", []aim{{"per_second", "amqp091 by hand", ""}, {"cpu_us", "amqp091 by hand", ""}})
}

// Those on a queue that delays what is rejected, from RabbitMQ 4.3 on.
var native = []string{"amqp091 delayed retry", "retryrmq, native"}

func (b *bench) storm() error {
	count, rounds := number("RETRYRMQ_BENCH_STORM", 100_000), min(b.rounds, 3)
	fmt.Printf("\n%d × 256 B, each fails 5 times and waits a second each time, 1000 outstanding, %d rounds; the consumer is there first\n", count, rounds)
	names := []string{"amqp091 requeue", "amqp091 by hand", "retryrmq"}
	if b.delaysRetries() {
		names = append(names, native...)
	}
	return b.turns("retry storm", "quorum", count, rounds, names, func(name string) (figures, error) {
		queue, err := b.stormed(name)
		if err != nil {
			return nil, err
		}
		defer b.drop(queue)
		measured := b.start("storm", name, queue, count)
		if err := b.waitForConsumer(queue); err != nil {
			return nil, err
		}
		if err := b.publish(queue, count); err != nil {
			return nil, err
		}
		return measured()
	}, "retryrmq", []aim{{"per_second", "amqp091 by hand", ""}, {"cpu_us", "amqp091 by hand", ""}})
}

func (b *bench) stormed(name string) (string, error) {
	if slices.Contains(native, name) {
		return b.nativeQueue()
	}
	return b.full("quorum", 0, time.Second)
}

func (b *bench) outage() error {
	away := number("RETRYRMQ_BENCH_OUTAGE", 120)
	count := away * perSecond
	fmt.Printf("\n%d messages, %d a second for %d s, in which every attempt fails; five retries after 1 to 16 s; one round\n", count, perSecond, away)
	names := []string{"amqp091 requeue", "amqp091 by hand", "retryrmq", "retryrmq, pause"}
	return b.turns("outage", "quorum", count, 1, names, func(name string) (figures, error) {
		queue, err := b.full("quorum", 0, delays...)
		if err != nil {
			return nil, err
		}
		defer b.drop(queue)
		measured := b.start("outage", name, queue, count)
		if err := b.waitForConsumer(queue); err != nil {
			return nil, err
		}
		stop, err := b.publisher(queue, count)
		if err != nil {
			return nil, err
		}
		defer stop()
		return measured()
	}, "retryrmq", nil)
}

func (b *bench) latency() error {
	count := max(b.count/100, 20)
	fmt.Printf("\none message at a time, %d a second, %d of them, %d rounds\n", perSecond, count, b.rounds)
	return b.kinds("one at a time", "", count, []string{"amqp091", "retryrmq"}, func(name, kind string) (figures, error) {
		queue, err := b.full(kind, 0)
		if err != nil {
			return nil, err
		}
		defer b.drop(queue)
		stop, err := b.publisher(queue, count)
		if err != nil {
			return nil, err
		}
		defer stop()
		return b.program("latency", name, queue, count)
	}, "retryrmq", []aim{{"p99_ms", "amqp091", "≤ 1"}})
}

// All of them in turn, in each round from another one on, for both types of queues. `how` is added to the type in the table.
func (b *bench) kinds(group, how string, count int, names []string, measure func(name, kind string) (figures, error), ours string, aims []aim) error {
	wanted := os.Getenv("RETRYRMQ_BENCH_KINDS")
	for _, kind := range []string{"classic", "quorum"} {
		if wanted != "" && !slices.Contains(strings.Fields(wanted), kind) {
			continue
		}
		one := func(name string) (figures, error) { return measure(name, kind) }
		if err := b.turns(group, kind+how, count, b.rounds, names, one, ours, aims); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) turns(group, kind string, count, rounds int, names []string, measure func(name string) (figures, error), ours string, aims []aim) error {
	found := map[string][]figures{}
	for round := range rounds {
		for i := range names {
			name := names[(i+round)%len(names)]
			one, err := measure(name)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			found[name] = append(found[name], one)
		}
	}
	fmt.Printf("\nwork queue: %s\n", kind)
	table(names, found)
	if err := keep(group, kind, count, found); err != nil {
		return err
	}
	ratios(found, ours, aims)
	return nil
}

// Publishes messages at a rate; what it returns ends it.
func (b *bench) publisher(queue string, count int) (func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	publishing := exec.Command(self, "case", "latency", "publisher", b.url, queue, strconv.Itoa(count))
	publishing.Stderr = os.Stderr
	if err := publishing.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = publishing.Process.Kill()
		_ = publishing.Wait()
	}, nil
}

func (b *bench) delaysRetries() bool {
	var major, minor int
	_, err := fmt.Sscanf(fmt.Sprint(b.connection.Properties["version"]), "%d.%d", &major, &minor)
	return err == nil && (major > 4 || major == 4 && minor >= 3)
}

func (b *bench) program(group, name, queue string, count int) (figures, error) {
	return b.start(group, name, queue, count)()
}

// Starts a measured program at once; what it returns waits for its figures.
func (b *bench) start(group, name, queue string, count int) func() (figures, error) {
	self, err := os.Executable()
	if err != nil {
		return func() (figures, error) { return nil, err }
	}
	return started(self, "case", group, name, b.url, queue, strconv.Itoa(count))
}

func (b *bench) run(program string, arguments ...string) (figures, error) {
	return started(program, arguments...)()
}

func started(program string, arguments ...string) func() (figures, error) {
	command := exec.Command(program, arguments...)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, os.Stderr
	err := command.Start()
	return func() (figures, error) {
		if err != nil {
			return nil, err
		}
		if err := command.Wait(); err != nil {
			return nil, err
		}
		var found figures
		return found, json.Unmarshal(output.Bytes(), &found)
	}
}

// Returns when somebody consumes from the queue, and what hangs from it is a safe place: a waiting queue is none before it is older
// than two seconds, and a consumer does not know how old one is that it finds.
func (b *bench) waitForConsumer(queue string) error {
	channel, err := b.connection.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	for {
		found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return err
		}
		if found.Consumers > 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(3 * time.Second)
	return nil
}

// A queue with so many messages that delays what is rejected, as the strategy makes it.
func (b *bench) nativeQueue() (string, error) {
	// It says that it made the queue.
	retryrmq.SetLogger(slog.New(slog.DiscardHandler))
	conn, err := retryrmq.Dial(context.Background(), b.url)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	queue := newName()
	ctx, made := context.WithCancel(context.Background())
	defer made()
	if err := conn.Consume(ctx, queue, func(context.Context, *retryrmq.Message) error { return nil }, retryrmq.OnReady(made),
		retryrmq.DLX(), retryrmq.Strategy(retryrmq.Native), retryrmq.Retry(retryrmq.Fixed(time.Second))); err != nil {
		return "", err
	}
	return queue, nil
}

func newName() string { return fmt.Sprintf("bench.%d.%d", os.Getpid(), monotonic()) }

// A queue with so many messages, and those beside it in which they wait so long, or end, when it is done by hand.
func (b *bench) full(kind string, count int, delays ...time.Duration) (string, error) {
	channel, err := b.connection.Channel()
	if err != nil {
		return "", err
	}
	defer channel.Close()
	queue := newName()
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": kind}); err != nil {
		return "", err
	}
	for _, delay := range delays {
		if _, err := channel.QueueDeclare(waiting(queue, delay), true, false, false, false, amqp091.Table{
			"x-queue-type": "quorum", "x-message-ttl": delay.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue,
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}); err != nil {
			return "", err
		}
	}
	if _, err := channel.QueueDeclare(dead(queue), true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		return "", err
	}
	return queue, b.publish(queue, count)
}

// Returns when so many messages are stored.
func (b *bench) publish(queue string, count int) error {
	channel, err := b.connection.Channel()
	if err != nil {
		return err
	}
	defer channel.Close()
	if err := channel.Confirm(false); err != nil {
		return err
	}
	body := []byte(strings.Repeat("x", 256))
	outstanding := make(chan *amqp091.DeferredConfirmation, 1000)
	go func() {
		defer close(outstanding)
		for i := range count {
			confirmation, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
				Body: body, DeliveryMode: amqp091.Persistent, MessageId: strconv.Itoa(i), Headers: amqp091.Table{"uuid": strconv.Itoa(i)},
			})
			if err != nil {
				return
			}
			outstanding <- confirmation
		}
	}()
	confirmed := 0
	for confirmation := range outstanding {
		if confirmation.Wait() {
			confirmed++
		}
	}
	if confirmed != count {
		return fmt.Errorf("%d of %d messages were published", confirmed, count)
	}
	return nil
}

func (b *bench) drop(queue string) {
	channel, err := b.connection.Channel()
	if err != nil {
		return
	}
	defer channel.Close()
	names := []string{queue, dead(queue), queue + ".parked"}
	// The default policy's as well.
	for _, delay := range append([]time.Duration{64 * time.Second, 256 * time.Second}, delays...) {
		names = append(names, waiting(queue, delay), fmt.Sprintf("%s.retry.%d", queue, delay.Milliseconds()))
	}
	for _, name := range names {
		_, _ = channel.QueueDelete(name, false, false, false)
	}
}
