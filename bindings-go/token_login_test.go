package retryrmq_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

// How long a token is good for, in seconds: so long that a busy machine renews it in time.
const tokenLifetime = 40

// OAuth 2 tokens and a client certificate, at the broker of tests/logins.
func TestTokensAndCertificatesAreLogins(t *testing.T) {
	amqp, mint := os.Getenv("RETRYRMQ_LOGINS_AMQP"), os.Getenv("RETRYRMQ_LOGINS_TOKEN")
	if amqp == "" {
		t.Skip("there is no broker that takes tokens; tests/logins starts one")
	}
	var asked atomic.Int32
	token := func(ctx context.Context) (retryrmq.Login, error) {
		asked.Add(1)
		minted, err := exec.CommandContext(ctx, mint, strconv.Itoa(tokenLifetime)).Output()
		return retryrmq.Login{User: "token", Password: string(minted)}, err
	}
	conn := dialed(t, amqp, retryrmq.WithCredentials(token))
	handlesOneASecond(t, conn, 2*tokenLifetime+4) // longer than two tokens live
	if conn.Reconnects() != 0 || asked.Load() <= 2 || !conn.Healthy() {
		t.Errorf("%d reconnects, asked %d times, healthy: %v", conn.Reconnects(), asked.Load(), conn.Healthy())
	}
	handlesOneASecond(t, dialed(t, os.Getenv("RETRYRMQ_LOGINS_CERTIFICATE")), 1)
}

func dialed(t *testing.T, url string, options ...retryrmq.DialOption) *retryrmq.Conn {
	t.Helper()
	conn, err := retryrmq.Dial(t.Context(), url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A message a second is published and handled.
func handlesOneASecond(t *testing.T, conn *retryrmq.Conn, seconds int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	handled, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- conn.Consume(ctx, "orders", func(_ context.Context, msg *retryrmq.Message) error {
			handled <- string(msg.Body)
			return nil
		}, retryrmq.DLX())
	}()
	for number := range seconds {
		text := strconv.Itoa(number)
		// Until the consumer has made its queue, and that has a leader, nobody takes it.
		eventually(t, text+" is published", func() bool {
			return conn.Publish(ctx, retryrmq.Publishing{RoutingKey: "orders", Body: []byte(text)}) == nil
		})
		select {
		case seen := <-handled:
			if seen != text {
				t.Errorf("%q was handled, not %q", seen, text)
			}
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(time.Minute):
			t.Fatalf("%q is not handled", text)
		}
		time.Sleep(time.Second)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
