package watermillretryrmq_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/watermillretryrmq"
)

// The busiest machine gets this long.
const patience = 2 * time.Minute

// A virtual host of its own on the newest broker.
func vhost(t *testing.T) string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(os.Getenv("RETRYRMQ_TEST_BROKERS")), "\n")
	parts := strings.Split(lines[len(lines)-1], "|")
	if len(parts) < 3 {
		t.Skip("no broker: run it through tests/broker/with-brokers")
	}
	address, err := url.Parse(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("watermill-%d-%d", os.Getpid(), time.Now().UnixNano())
	manage := func(method, path, body string) {
		request, err := http.NewRequest(method, parts[2]+"/api/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		password, _ := address.User.Password()
		request.SetBasicAuth(address.User.Username(), password)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		// A busy broker says 500 of a deletion that it goes on with.
		isGoing := method == http.MethodDelete && response.StatusCode == http.StatusInternalServerError
		if _ = response.Body.Close(); response.StatusCode >= 300 && !isGoing {
			t.Fatalf("%s %s: %s", method, path, response.Status)
		}
	}
	manage(http.MethodPut, "vhosts/"+name, "{}")
	t.Cleanup(func() { manage(http.MethodDelete, "vhosts/"+name, "") })
	manage(http.MethodPut, "permissions/"+name+"/"+address.User.Username(), `{"configure": ".*", "write": ".*", "read": ".*"}`)
	address.Path, address.RawPath = "/"+name, ""
	return address.String()
}

func dial(t *testing.T, url string) *retryrmq.Conn {
	t.Helper()
	conn, err := retryrmq.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A router that runs until the end of the test, which it has to reach cleanly.
func run(t *testing.T, conn *retryrmq.Conn, add func(*message.Router, *watermillretryrmq.Subscriber), options ...retryrmq.Option) {
	t.Helper()
	options = append([]retryrmq.Option{retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10 * time.Millisecond).Retries(2))}, options...)
	subscriber := must(watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: options}, nil))
	router := must(message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{}))
	add(router, subscriber)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended, subscriber.Close()); err != nil {
			t.Error(err)
		}
	})
}

func order(id string) *message.Message {
	msg := message.NewMessage(id, []byte(`{"customer":7}`))
	msg.Metadata.Set("tenant", "acme")
	return msg
}

func publish(t *testing.T, conn *retryrmq.Conn, topic string, messages ...*message.Message) {
	t.Helper()
	publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
	if err := publisher.Publish(topic, messages...); err != nil {
		t.Fatal(err)
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestAHandlerThatFailsTwiceGetsItsMessageThreeTimes(t *testing.T) {
	conn := dial(t, vhost(t))
	seen, shipped := make(chan string, 10), make(chan *message.Message, 10)
	run(t, conn, func(router *message.Router, subscriber *watermillretryrmq.Subscriber) {
		publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
		router.AddMiddleware(watermillretryrmq.Outcome)
		router.AddConsumerHandler("shipping", "shipments", subscriber, func(msg *message.Message) error {
			shipped <- msg.Copy()
			return nil
		})
		router.AddHandler("billing", "orders", subscriber, "shipments", publisher, func(msg *message.Message) ([]*message.Message, error) {
			attempt := msg.Metadata.Get(watermillretryrmq.AttemptKey)
			seen <- fmt.Sprintf("%s of %s for %s after %q", attempt, msg.UUID, msg.Metadata.Get("tenant"), watermillretryrmq.MessageOf(msg).LastError)
			if attempt != "3" {
				return nil, errors.New("the database is restarting")
			}
			return []*message.Message{msg.Copy()}, nil
		})
	})
	publish(t, conn, "orders", order("a"))
	for _, expected := range []string{
		`1 of a for acme after ""`, `2 of a for acme after "the database is restarting"`, `3 of a for acme after "the database is restarting"`,
	} {
		if got := receive(t, seen); got != expected {
			t.Errorf("%s instead of %s", got, expected)
		}
	}
	msg := receive(t, shipped)
	delete(msg.Metadata, watermillretryrmq.RedeliveredKey) // where the connection was lost
	if msg.UUID != "a" || string(msg.Payload) != `{"customer":7}` ||
		!maps.Equal(msg.Metadata, message.Metadata{"tenant": "acme", watermillretryrmq.AttemptKey: "1"}) {
		t.Errorf("the copy has arrived as %+v", msg)
	}
}

// Ends the context of a message when its handler returns, as Watermill's middleware Timeout does, whose package needs more modules.
func endsContext(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithCancel(msg.Context())
		defer cancel()
		msg.SetContext(ctx)
		return next(msg)
	}
}

func TestARouterPublishesMessagesWhoseContextHasEnded(t *testing.T) {
	conn := dial(t, vhost(t))
	local := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	shipped := make(chan string, 10)
	run(t, conn, func(router *message.Router, subscriber *watermillretryrmq.Subscriber) {
		publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
		router.AddMiddleware(watermillretryrmq.Outcome, endsContext)
		router.AddConsumerHandler("shipping", "shipments", subscriber, func(msg *message.Message) error {
			shipped <- msg.UUID
			return nil
		})
		router.AddHandler("billing", "orders", subscriber, "shipments", publisher, message.PassthroughHandler)
		router.AddHandler("forwarding", "local", local, "shipments", publisher, message.PassthroughHandler)
	})
	publish(t, conn, "orders", order("a"))
	if id := receive(t, shipped); id != "a" {
		t.Errorf("%s was shipped", id)
	}
	if err := local.Publish("local", order("b")); err != nil {
		t.Fatal(err)
	}
	for id := receive(t, shipped); id != "b"; id = receive(t, shipped) {
		if id != "a" { // which may come again
			t.Errorf("%s was shipped", id)
		}
	}
}

func TestAnEndedContextOfAMessageOfTheProgramEndsPublish(t *testing.T) {
	conn := dial(t, vhost(t))
	publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := publisher.Publish("orders", message.NewMessageWithContext(ctx, "a", nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

func TestAMessageIsPublishedAfterItsAck(t *testing.T) {
	conn := dial(t, vhost(t))
	subscriber := must(watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: []retryrmq.Option{retryrmq.DLX()}}, nil))
	messages := must(subscriber.Subscribe(t.Context(), "orders"))
	publish(t, conn, "orders", order("a"))
	msg := receive(t, messages)
	msg.Ack()
	<-msg.Context().Done()
	publish(t, conn, "orders", msg)
	receive(t, messages).Ack()
	if err := subscriber.Close(); err != nil {
		t.Error(err)
	}
}

// Waits for the record of a message in the parking queue.
func parked(t *testing.T, conn *retryrmq.Conn, queue, id string) *retryrmq.ParkedMessage {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for entry, err := range conn.Parked(t.Context(), queue) {
			if errors.Is(err, retryrmq.ErrQueueNotFound) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if entry.Message.MessageID == id {
				return entry
			}
		}
	}
	t.Fatalf("%s was not parked", id)
	return nil
}

type noSuchCustomer struct{ number int }

func (n noSuchCustomer) Error() string { return fmt.Sprintf("no such customer: %d", n.number) }

func TestTheRecordOfAParkedMessageSaysWhy(t *testing.T) {
	t.Setenv("GODEBUG", "panicnil=1") // as in a program whose go.mod says go 1.20
	conn := dial(t, vhost(t))
	fails := func(msg *message.Message) ([]*message.Message, error) {
		switch msg.UUID {
		case "fatal":
			return nil, retryrmq.Permanent(noSuchCustomer{7})
		case "panic":
			panic("out of range")
		case "nil":
			panic(nil)
		case "goexit":
			runtime.Goexit()
		case "nacked":
			msg.Nack()
			<-msg.Context().Done() // the subscriber knows of it
			return nil, errors.New("nacked by hand")
		case "produces":
			return []*message.Message{order("b")}, nil
		}
		return nil, fmt.Errorf("cannot bill: %w", noSuchCustomer{7})
	}
	run(t, conn, func(router *message.Router, subscriber *watermillretryrmq.Subscriber) {
		publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
		billing := router.AddHandler("billing", "orders", subscriber, "nowhere", publisher, fails)
		billing.AddMiddleware(watermillretryrmq.Outcome)
		router.AddHandler("plain", "plain", subscriber, "nowhere", publisher, fails)
	})
	publish(t, conn, "orders", order("failed"), order("fatal"), order("panic"), order("nil"), order("goexit"), order("nacked"), order("produces"))
	publish(t, conn, "plain", order("failed"))
	for _, expected := range []struct {
		queue, id, reason, error, kind string
		attempts                       int
	}{
		{"orders", "failed", "exhausted", "cannot bill: no such customer: 7", "noSuchCustomer", 3},
		{"orders", "fatal", "fatal", "no such customer: 7", "noSuchCustomer", 1},
		{"orders", "panic", "exhausted", "panic: out of range", "panic", 3},
		{"orders", "goexit", "exhausted", "the handler ended its goroutine", "panic", 3},
		{"orders", "nil", "exhausted", "panicked with nil", "panic", 3},
		{"orders", "nacked", "exhausted", "nacked by hand", "Error", 3},
		{"orders", "produces", "exhausted", "what it returned was not published", "Error", 3},
		{"plain", "failed", "exhausted", "the middleware watermillretryrmq.Outcome", "Error", 3},
	} {
		record := parked(t, conn, expected.queue, expected.id)
		if record.Reason != expected.reason || !strings.Contains(record.Error, expected.error) || record.ErrorType != expected.kind ||
			record.Attempts != expected.attempts {
			t.Errorf("%s is parked as %s, %s (%s), after %d attempts", expected.id, record.Reason, record.Error, record.ErrorType, record.Attempts)
		}
	}
}

func TestAHandlerThatRunsWhenTheRouterClosesFinishes(t *testing.T) {
	conn := dial(t, vhost(t))
	options := []retryrmq.Option{retryrmq.DLX(), retryrmq.Concurrency(1), retryrmq.Prefetch(2)}
	subscriber := must(watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: options}, nil))
	router := must(message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{}))
	began, goOn, ended := make(chan string, 2), make(chan struct{}), make(chan error, 1)
	var cut error
	router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
		began <- msg.UUID
		<-goOn
		cut = msg.Context().Err()
		return nil
	})
	ctx, stop := context.WithCancel(context.Background())
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	publish(t, conn, "orders", order("a"), order("b"))
	first := receive(t, began)
	for deadline := time.Now().Add(patience); conn.Stats("orders").Outstanding < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second message was not prefetched")
		}
	}
	stop()
	// The drain has begun when another subscriber gets what the first has prefetched.
	other := must(watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: options}, nil))
	msg := receive(t, must(other.Subscribe(t.Context(), "orders")))
	msg.Ack()
	close(goOn)
	if err := errors.Join(receive(t, ended), subscriber.Close(), other.Close()); err != nil || cut != nil || msg.UUID == first {
		t.Errorf("it ended with %v, the context of the handler of %s with %v; the other subscriber got %s", err, first, cut, msg.UUID)
	}
	if stats := conn.Stats("orders"); stats.Acked != 2 || len(began) != 0 {
		t.Errorf("it was not acknowledged, or the handler got more: %+v", stats)
	}
}

func TestAHandlerThatTakesLongerThanItsTimeoutHasFailed(t *testing.T) {
	conn := dial(t, vhost(t))
	run(t, conn, func(router *message.Router, subscriber *watermillretryrmq.Subscriber) {
		router.AddMiddleware(watermillretryrmq.Outcome)
		router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
			<-msg.Context().Done()
			return nil // too late to succeed
		})
	}, retryrmq.HandlerTimeout(50*time.Millisecond), retryrmq.DrainTimeout(10*time.Second))
	publish(t, conn, "orders", order("a"))
	record := parked(t, conn, "orders", "a")
	if record.Reason != "exhausted" || record.ErrorType != "HandlerTimeout" || record.Attempts != 3 {
		t.Errorf("it is parked as %s, %s (%s), after %d attempts", record.Reason, record.Error, record.ErrorType, record.Attempts)
	}
}

func TestARefusedConsumerIsAnErrorOfSubscribe(t *testing.T) {
	conn := dial(t, vhost(t))
	config := watermillretryrmq.SubscriberConfig{
		Queue:   func(topic string) string { return topic + ".billing" },
		Options: []retryrmq.Option{retryrmq.DLX(), retryrmq.WorkQueue(retryrmq.Existing)},
	}
	subscriber := must(watermillretryrmq.NewSubscriber(conn, config, nil))
	_, err := subscriber.Subscribe(t.Context(), "orders")
	if !errors.Is(err, retryrmq.ErrQueueNotFound) || !strings.Contains(err.Error(), "orders.billing") {
		t.Errorf("a missing queue is %v", err)
	}
	if err := subscriber.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatNobodyReadsIsRequeuedAtTheDrainTimeout(t *testing.T) {
	conn := dial(t, vhost(t))
	subscribe := func(options ...retryrmq.Option) (*watermillretryrmq.Subscriber, <-chan *message.Message) {
		options = append(options, retryrmq.DLX())
		subscriber := must(watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: options}, nil))
		return subscriber, must(subscriber.Subscribe(context.Background(), "orders"))
	}
	first, unread := subscribe(retryrmq.DrainTimeout(10 * time.Millisecond))
	publish(t, conn, "orders", order("a"), order("b"), order("c"))
	read := receive(t, unread) // and neither acks nor nacks it
	if err := first.Close(); !errors.Is(err, retryrmq.ErrTimeout) {
		t.Errorf("what was left behind is %v", err)
	}
	if err := read.Context().Err(); err == nil {
		t.Error("the context of a message that was left behind goes on")
	}
	read.Ack() // too late
	second, messages := subscribe()
	for range 3 {
		msg := receive(t, messages)
		if attempt := msg.Metadata.Get(watermillretryrmq.AttemptKey); attempt != "1" {
			t.Errorf("%s counts as failed: attempt %s", msg.UUID, attempt)
		}
		msg.Ack()
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	for range unread {
		t.Error("a message came after the end")
	}
}

// The environment variable that makes this program the worker of the next test.
const workerKey = "WATERMILLRETRYRMQ_WORKER"

// Handles orders until it is killed. It says what it does, and takes long for every second order.
func worker(url string) {
	conn := must(retryrmq.Dial(context.Background(), url))
	options := []retryrmq.Option{retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10 * time.Millisecond).Retries(3)), retryrmq.Concurrency(4)}
	subscriber := must(watermillretryrmq.NewSubscriber(conn, watermillretryrmq.SubscriberConfig{Options: options}, nil))
	router := must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	router.AddMiddleware(watermillretryrmq.Outcome)
	hangs := os.Getenv(workerKey) == "hangs"
	router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
		fmt.Println("begins", msg.UUID)
		if msg.Metadata.Get(watermillretryrmq.AttemptKey) == "1" {
			return errors.New("the database is restarting")
		}
		if hangs && msg.UUID > "order-05" {
			select {}
		}
		fmt.Println("handled", msg.UUID)
		return nil
	})
	panic(router.Run(context.Background()))
}

func TestMain(m *testing.M) {
	retryrmq.SetLogger(nil)
	if os.Getenv(workerKey) != "" {
		worker(os.Getenv("RETRYRMQ_URL"))
	}
	os.Exit(m.Run())
}

// Starts a worker; the channel has what it prints.
func start(t *testing.T, url, how string) (*exec.Cmd, <-chan string) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), workerKey+"="+how, "RETRYRMQ_URL="+url)
	command.Stderr = os.Stderr
	output := must(command.StdoutPipe())
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		for range lines {
		}
		_ = command.Wait()
	})
	return command, lines
}

// A node of its own of the newest version, which may be killed: its address, and what runs a command of tests/broker/broker on it.
func ownNode(t *testing.T) (url string, control func(command string) string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(os.Getenv("RETRYRMQ_TEST_BROKERS")), "\n")
	parts := strings.Split(lines[len(lines)-1], "|")
	if len(parts) < 4 || parts[3] == "" {
		t.Skip("no broker that may be killed: run it through tests/broker/with-brokers, without RETRYRMQ_URL")
	}
	release := strings.Join(strings.Split(parts[0], ".")[:2], ".")
	run := func(command, number string) string {
		output, err := exec.Command("sh", "-c", parts[3]+" "+command+" "+release+" "+number).Output()
		if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		return strings.TrimSpace(string(output))
	}
	number := run("spawn", "")
	if number == "" {
		t.FailNow() // node 0 belongs to all tests
	}
	t.Cleanup(func() { run("release", number) })
	url, _, _ = strings.Cut(run("url", number), "\n")
	return url, func(command string) string { return run(command, number) }
}

func TestNothingIsLostWhenTheBrokerIsKilled(t *testing.T) {
	url, control := ownNode(t)
	conn := dial(t, url)
	handled := make(chan string, 1000)
	run(t, conn, func(router *message.Router, subscriber *watermillretryrmq.Subscriber) {
		router.AddMiddleware(watermillretryrmq.Outcome)
		router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
			if msg.Metadata.Get(watermillretryrmq.AttemptKey) == "1" {
				return errors.New("the database is restarting")
			}
			handled <- msg.UUID
			return nil
		})
	})
	publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
	const count = 100
	go func() {
		for i := range count {
			for publisher.Publish("orders", order(fmt.Sprint(i))) != nil && t.Context().Err() == nil { // it may be stored all the same
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	done := map[string]bool{}
	for len(done) < count {
		if done[receive(t, handled)] = true; len(done) == 10 && control != nil {
			control("kill") // SIGKILL of the Erlang VM
			control("start")
			control = nil
		}
	}
}

func TestNothingIsLostWhenTheProgramIsKilled(t *testing.T) {
	url := vhost(t)
	conn := dial(t, url)
	first, lines := start(t, url, "hangs")
	publisher := must(watermillretryrmq.NewPublisher(conn, watermillretryrmq.PublisherConfig{}))
	missing := map[string]bool{}
	for i := range 20 {
		id := fmt.Sprintf("order-%02d", i)
		missing[id] = true
		for publisher.Publish("orders", order(id)) != nil { // its worker makes the queue
			time.Sleep(10 * time.Millisecond)
		}
	}
	// Four hang in the middle of their work; others wait for a retry, or are prefetched.
	begun := map[string]int{}
	for hanging := 0; hanging < 4; {
		verb, id, _ := strings.Cut(receive(t, lines), " ")
		if verb == "handled" {
			delete(missing, id)
		} else if begun[id]++; begun[id] == 2 && id > "order-05" {
			hanging++
		}
	}
	_ = first.Process.Kill() // SIGKILL
	if len(missing) < 4 {
		t.Fatalf("only %v are in the middle", missing)
	}
	_, again := start(t, url, "works")
	for len(missing) > 0 {
		line := receive(t, again)
		if id, ok := strings.CutPrefix(line, "handled "); ok {
			delete(missing, id)
		} else if line == "" {
			t.Fatalf("the second worker ended without %v", missing)
		}
	}
}
