package retryrmqtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

func consumes(t *testing.T, fake *retryrmqtest.FakeClient, handler retryrmq.Handler, options ...retryrmq.Option) func() error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- fake.Consume(ctx, "orders", handler, append(options, retryrmq.OnReady(func() { close(ready) }))...)
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return func() error {
		cancel()
		return <-ended
	}
}

func TestAFakeClientKeepsWhatIsPublished(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	body := []byte("7")
	headers := retryrmq.Table{"tenant": "a"}
	for _, message := range []retryrmq.Publishing{
		{RoutingKey: "orders", Body: body, Headers: headers, MessageID: "m-7", Priority: 3},
		{Exchange: "events", RoutingKey: "created", Optional: true},
		{RoutingKey: "orders", Delay: 5 * time.Minute},
	} {
		if err := fake.Publish(t.Context(), message); err != nil {
			t.Fatal(err)
		}
	}
	body[0], headers["tenant"] = '8', "b"
	published := fake.Published()
	first := published[0]
	if len(published) != 3 || string(first.Body) != "7" || first.Headers["tenant"] != "a" || first.MessageID != "m-7" || first.Priority != 3 ||
		published[1].Exchange != "events" || published[2].Delay != 5*time.Minute {
		t.Errorf("%+v", published)
	}
}

func TestAFakeClientRefusesWhatAClientRefuses(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	fake.SetPublishError(retryrmq.ErrUnreachable) // is not asked for
	for _, refused := range []struct {
		message retryrmq.Publishing
		err     error
	}{
		{retryrmq.Publishing{RoutingKey: strings.Repeat("q", 256)}, retryrmq.ErrTooLarge},
		{retryrmq.Publishing{RoutingKey: "\xff"}, retryrmq.ErrInvalidOption},
		{retryrmq.Publishing{RoutingKey: "orders", MessageID: strings.Repeat("x", 256)}, retryrmq.ErrInvalidOption},
		{retryrmq.Publishing{Exchange: "events", Delay: time.Second}, retryrmq.ErrInvalidOption},
		{retryrmq.Publishing{RoutingKey: "orders", Headers: retryrmq.Table{"bad": func() {}}}, retryrmq.ErrInvalidOption},
	} {
		if err := fake.Publish(t.Context(), refused.message); !errors.Is(err, refused.err) {
			t.Errorf("%+v: %v", refused.message, err)
		}
	}
	if err := fake.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders"}); !errors.Is(err, retryrmq.ErrUnreachable) {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fake.Publish(ended, retryrmq.Publishing{RoutingKey: "orders"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if fake.Healthy() || len(fake.Published()) != 0 {
		t.Errorf("%q, %v", fake.Trouble(), fake.Published())
	}
	handler := func(context.Context, *retryrmq.Message) error { return nil }
	if err := fake.Consume(t.Context(), "orders", handler, retryrmq.Retry(retryrmq.Fixed(time.Second))); !errors.Is(err, retryrmq.ErrInvalidOption) {
		t.Error(err)
	}
	if err := fake.Consume(t.Context(), "orders.parked", handler); !errors.Is(err, retryrmq.ErrInvalidOption) {
		t.Error(err)
	}
}

func TestAFakeClientDeliversToAHandlerWithItsPolicy(t *testing.T) {
	calls := 0
	around := func(next retryrmq.Handler) retryrmq.Handler {
		return func(ctx context.Context, m *retryrmq.Message) error {
			calls++
			return next(ctx, m)
		}
	}
	fake := retryrmqtest.NewFakeClient(t, retryrmq.UseAll(around))
	end := consumes(t, fake, func(ctx context.Context, m *retryrmq.Message) error {
		if m.Attempt == 1 {
			return errors.New("no answer")
		}
		return fake.Publish(ctx, retryrmq.Publishing{RoutingKey: "shipped", Body: m.Body})
	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(10*time.Second)))
	result, err := fake.Deliver(t.Context(), "orders", retryrmq.Publishing{Body: []byte("7"), Headers: retryrmq.Table{"tenant": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Acked()) != 1 || result.Elapsed != 10*time.Second || result.Attempts[1].Message.Headers()["tenant"] != "a" || calls != 2 {
		t.Errorf("%+v, %d calls", result, calls)
	}
	if published := fake.Published(); len(published) != 1 || string(published[0].Body) != "7" {
		t.Errorf("%+v", published)
	}
	stats := fake.Stats("orders")
	if stats.Delivered != 2 || stats.Failed != 1 || stats.Retried != 1 || stats.Acked != 1 {
		t.Errorf("%+v", stats)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fake.Deliver(ended, "orders", retryrmq.Publishing{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDeliverWaitsForItsConsumerAndHandlersOfBatchesGetOne(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	ended := make(chan error, 1)
	go func() {
		ended <- fake.ConsumeBatches(context.Background(), "orders", func(_ context.Context, messages []*retryrmq.Message) error {
			errs := make(retryrmq.BatchErrors, len(messages))
			errs[0] = retryrmq.Park("no")
			return errs
		}, retryrmq.DLX(), retryrmq.Batch(10))
	}()
	result, err := fake.Deliver(t.Context(), "orders", retryrmq.Publishing{})
	if err != nil {
		t.Fatal(err)
	}
	if parked := result.Parked(); len(parked) != 1 || parked[0].Reason != retryrmq.ReasonRequested {
		t.Errorf("%+v", result)
	}
	if err := fake.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, retryrmq.ErrClosed) {
		t.Error(err)
	}
	if err := fake.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "orders"}); !errors.Is(err, retryrmq.ErrClosed) {
		t.Error(err)
	}
}

func TestDeliverNamesTheQueuesThatAreConsumedWhenItWaitsInVain(t *testing.T) {
	defer retryrmqtest.SetConsumerTimeout(10 * time.Millisecond)()
	fake := retryrmqtest.NewFakeClient(t)
	end := consumes(t, fake, func(context.Context, *retryrmq.Message) error { return nil })
	_, err := fake.Deliver(t.Context(), "order", retryrmq.Publishing{})
	want := `the fake client has no consumer of "order"; it has ["orders"]`
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestDeliverOnAClosedClientReturnsErrClosed(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	waiting := make(chan error, 1)
	go func() {
		_, err := fake.Deliver(context.Background(), "orders", retryrmq.Publishing{})
		waiting <- err
	}()
	if err := fake.Conn.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, retryrmq.ErrClosed) {
		t.Error(err)
	}
	if _, err := fake.Deliver(t.Context(), "orders", retryrmq.Publishing{}); !errors.Is(err, retryrmq.ErrClosed) {
		t.Error(err)
	}
}

type delivered struct {
	result *retryrmqtest.Result
	err    error
}

func delivers(fake *retryrmqtest.FakeClient) <-chan delivered {
	done := make(chan delivered, 1)
	go func() {
		result, err := fake.Deliver(context.Background(), "orders", retryrmq.Publishing{Body: []byte("7")})
		done <- delivered{result, err}
	}()
	return done
}

func TestTheEndWaitsForARunningDelivery(t *testing.T) {
	for name, end := range map[string]func(fake *retryrmqtest.FakeClient, end func() error) error{
		"of the consumer": func(_ *retryrmqtest.FakeClient, end func() error) error { return end() },
		"of the client": func(fake *retryrmqtest.FakeClient, end func() error) error {
			err := fake.Close()
			if ended := end(); !errors.Is(ended, retryrmq.ErrClosed) {
				return fmt.Errorf("the consumer ended with %w", ended)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake := retryrmqtest.NewFakeClient(t)
			begun, goOn := make(chan struct{}), make(chan struct{})
			endConsumer := consumes(t, fake, func(ctx context.Context, m *retryrmq.Message) error {
				close(begun)
				<-goOn
				return fake.Publish(ctx, retryrmq.Publishing{RoutingKey: "shipped", Body: m.Body})
			})
			delivery := delivers(fake)
			<-begun
			ended := make(chan error, 1)
			go func() { ended <- end(fake, endConsumer) }()
			// Once it takes nothing more, the end has begun.
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				_, err := fake.Deliver(ctx, "other", retryrmq.Publishing{})
				cancel()
				if errors.Is(err, retryrmq.ErrClosed) || strings.Contains(err.Error(), "it has []") {
					break
				}
			}
			for range 1000 {
				runtime.Gosched() // to an end that does not wait
			}
			select {
			case err := <-ended:
				t.Fatalf("it ended while the handler ran: %v", err)
			default:
			}
			close(goOn)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if published := fake.Published(); len(published) != 1 || fake.Stats("orders").Acked != 1 {
				t.Errorf("%+v", published)
			}
			if got := <-delivery; got.err != nil || len(got.result.Acked()) != 1 {
				t.Error(got)
			}
		})
	}
}

func TestTheEndWaitsNoLongerThanTheDrainTimeout(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	begun, cause := make(chan struct{}), make(chan error, 1)
	end := consumes(t, fake, func(ctx context.Context, _ *retryrmq.Message) error {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	}, retryrmq.DrainTimeout(10*time.Millisecond))
	delivery := delivers(fake)
	<-begun
	err := end()
	if want := `the drain timeout has left 1 handler of "orders" running; 1 message requeued unsettled`; !errors.Is(err, retryrmq.ErrTimeout) ||
		!strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	if err := <-cause; !errors.Is(err, retryrmq.ErrTimeout) {
		t.Error(err)
	}
	if got := <-delivery; !errors.Is(got.err, retryrmq.ErrTimeout) || fake.Stats("orders").Acked != 0 {
		t.Error(got)
	}
}

func TestAFakeClientHasNoBroker(t *testing.T) {
	fake := retryrmqtest.NewFakeClient(t)
	if product, _ := fake.Server(); product != "fake" || fake.MetricsText() != "# EOF\n" || fake.Reconnects() != 0 || !fake.Healthy() {
		t.Errorf("%v", fake.Conn)
	}
	for _, err := range fake.Parked(t.Context(), "orders") {
		if !errors.Is(err, retryrmq.ErrClosed) || !strings.Contains(err.Error(), "needs a broker") {
			t.Error(err)
		}
	}
	if _, err := retryrmq.NewFakeConn(nil); !errors.Is(err, retryrmq.ErrInvalidOption) {
		t.Error(err)
	}
}
