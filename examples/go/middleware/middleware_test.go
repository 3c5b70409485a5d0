package middleware

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/getsentry/sentry-go"
	_ "modernc.org/sqlite"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

var options = []retryrmq.Option{retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(3))}

// Runs the handler on one message, which must be handled in the end.
func handle(t *testing.T, handler retryrmq.Handler, middleware ...retryrmq.Middleware) {
	t.Helper()
	result, err := retryrmqtest.Simulate(t.Context(), "orders", handler, []retryrmq.Publishing{{MessageID: "4711"}},
		append(options, retryrmq.Use(middleware...))...)
	if err != nil || len(result.Acked()) != 1 {
		t.Fatalf("%+v, %v", result, err)
	}
}

func TestFailuresAreReportedToSentry(t *testing.T) {
	transport := &sentry.MockTransport{} // in memory
	if err := sentry.Init(sentry.ClientOptions{Dsn: "https://key@sentry.example.org/1", Transport: transport}); err != nil {
		t.Fatal(err)
	}
	handle(t, func(_ context.Context, m *retryrmq.Message) error {
		switch {
		case m.Attempt == 1:
			return errors.New("no answer")
		case m.Attempt == 2:
			panic("no such item")
		case m.Headers()["x-retry-deferrals"] == nil:
			return retryrmq.Defer(time.Second) // nothing to report
		}
		return nil
	}, ReportErrors)
	events := transport.Events()
	if len(events) != 2 || events[0].Exception[0].Value != "no answer" || events[1].Message != "no such item" {
		t.Fatalf("%d events: %+v", len(events), events)
	}
	for i, event := range events {
		if message := event.Contexts["message"]; event.Tags["queue"] != "orders" || message["id"] != "4711" || message["attempt"] != i+1 {
			t.Errorf("%v, %v", event.Tags, message)
		}
	}
}

func TestAFailedAttemptWritesNothing(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each has a memory of its own
	if _, err := db.Exec("CREATE TABLE shipped (attempt)"); err != nil {
		t.Fatal(err)
	}
	handle(t, func(ctx context.Context, m *retryrmq.Message) error {
		if _, err := Tx(ctx).ExecContext(ctx, "INSERT INTO shipped VALUES (?)", m.Attempt); err != nil {
			return err
		}
		switch m.Attempt {
		case 1:
			return errors.New("no answer")
		case 2:
			panic("no such item")
		}
		return nil
	}, InTransaction(db))
	var count, attempt int
	if err := db.QueryRow("SELECT count(*), min(attempt) FROM shipped").Scan(&count, &attempt); err != nil || count != 1 || attempt != 3 {
		t.Errorf("%d rows, of attempt %d, %v", count, attempt, err)
	}
}

func TestARequestIDGoesFromThePublisherIntoTheLog(t *testing.T) {
	if os.Getenv("RETRYRMQ_URL") == "" {
		t.Skip("RETRYRMQ_URL is not set: this needs a broker")
	}
	var log bytes.Buffer // written by one goroutine, and read after its end
	logger := slog.New(LogRequestID{slog.NewTextHandler(&log, nil)})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	conn, err := retryrmq.DialEnv(ctx, retryrmq.UseAll(ReadRequestID), retryrmq.UsePublish(SendRequestID))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Consume(ctx, "example.request-id", func(ctx context.Context, m *retryrmq.Message) error {
		logger.InfoContext(ctx, "shipping", "attempt", m.Attempt)
		if m.Attempt == 1 {
			return errors.New("no answer")
		}
		stop()
		return nil
	}, append(options, retryrmq.Concurrency(1), retryrmq.OnReady(func() { // the queue exists
		message := retryrmq.Publishing{RoutingKey: "example.request-id", Body: []byte("7")}
		// Not with ctx, which the handler may end before it is confirmed.
		if err := conn.Publish(WithRequestID(t.Context(), "r-1"), message); err != nil {
			t.Error(err)
		}
	}))...)
	if err != nil {
		t.Error(err)
	}
	for _, line := range []string{"msg=shipping attempt=1 request_id=r-1", "msg=shipping attempt=2 request_id=r-1"} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("%q is not in the log: %s", line, log.String())
		}
	}
}
