package retryrmq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func TestAddressesThatCannotWork(t *testing.T) {
	for address, want := range map[string]error{
		"":                                retryrmq.ErrInvalidURL,
		"http://localhost":                retryrmq.ErrInvalidURL,
		"amqp://guest:s3cret@localhost:0": retryrmq.ErrInvalidURL,
		"amqp://guest:s3cret@:\xff":       retryrmq.ErrInvalidURL,
		"amqp://guest:s3cret@127.0.0.1:1": retryrmq.ErrUnreachable,
	} {
		_, err := retryrmq.Dial(t.Context(), address)
		if !errors.Is(err, want) {
			t.Errorf("%q: %v", address, err)
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "s3cret") {
			t.Errorf("the password is in the error: %s", text)
		}
	}
}

func TestTheEnvironmentSaysWhereTheBrokerIs(t *testing.T) {
	t.Setenv("RETRYRMQ_URL", " http://u:s3cret@localhost ")
	if _, err := retryrmq.DialEnv(t.Context()); !errors.Is(err, retryrmq.ErrInvalidURL) || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
	all := brokers(t)
	s := newFixture(t, all[len(all)-1])
	t.Setenv("RETRYRMQ_URL", s.url)
	conn, err := retryrmq.DialEnv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestACancelledContextEndsTheAttemptToConnect(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := retryrmq.Dial(ended, "amqp://127.0.0.1:1"); !errors.Is(err, context.Canceled) {
		t.Errorf("before: %v", err)
	}
	// Somebody who accepts and says nothing.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	during, end := context.WithCancel(t.Context())
	var silent sync.WaitGroup
	silent.Add(1)
	go func() {
		defer silent.Done()
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		end()
		_, _ = io.Copy(io.Discard, connection) // until it is given up
	}()
	if _, err := retryrmq.Dial(during, "amqp://"+listener.Addr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("during: %v", err)
	}
	silent.Wait()
}

func TestAClosedConnection(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "classic")
		s.publish(conn, "orders", "7")
		started, release := make(chan struct{}), make(chan struct{})
		c := s.consume(conn, "orders", func(context.Context, *retryrmq.Message) error {
			close(started)
			<-release
			// What it publishes belongs to what it handles.
			return conn.Publish(context.Background(), retryrmq.Publishing{RoutingKey: "after"})
		}, retryrmq.DLX())
		s.queue("after", "classic")
		<-started
		var all sync.WaitGroup
		for range 3 { // also at the same time
			all.Add(1)
			go func() {
				defer all.Done()
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			}()
		}
		eventually(t, "it is closing", func() bool {
			for _, err := range conn.Parked(t.Context(), "orders") {
				return errors.Is(err, retryrmq.ErrClosed)
			}
			return false
		})
		close(release)
		all.Wait()
		if err := c.end(); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("Consume: %v", err)
		}
		if stats := conn.Stats("orders"); stats.Acked != 1 {
			t.Errorf("%+v", stats)
		}
		nothing := func(context.Context, *retryrmq.Message) error { return nil }
		if err := conn.Consume(t.Context(), "orders", nothing); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("Consume: %v", err)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{}); !errors.Is(err, retryrmq.ErrClosed) {
			t.Errorf("Publish: %v", err)
		}
		for _, err := range conn.Parked(t.Context(), "orders") {
			if !errors.Is(err, retryrmq.ErrClosed) {
				t.Errorf("Parked: %v", err)
			}
		}
		if conn.MetricsText() != "" || conn.Reconnects() != 0 {
			t.Error("a closed connection has numbers")
		}
	})
}

func TestManyConnectionsComeAndGo(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		var all sync.WaitGroup
		for range 8 {
			all.Add(1)
			go func() {
				defer all.Done()
				for range 3 {
					conn, err := retryrmq.Dial(context.Background(), s.url)
					if err != nil {
						t.Error(err)
						return
					}
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		all.Wait()
	})
}

func TestTLSAndWhatTheServerSays(t *testing.T) {
	once(t, func(t *testing.T, s *fixture) {
		product, version := s.dial().Server()
		if product != "RabbitMQ" || version != s.b.version {
			t.Errorf("got %q %q", product, version)
		}
		if s.b.amqps == "" {
			return
		}
		// Without the authority's file the certificate is nobody's.
		if _, err := retryrmq.Dial(t.Context(), s.b.amqps); !errors.Is(err, retryrmq.ErrTLSFailed) {
			t.Errorf("got %v", err)
		}
		authority := os.Getenv("RETRYRMQ_TEST_CA")
		if authority == "" {
			return
		}
		conn, err := retryrmq.Dial(t.Context(), s.b.amqps+"?cacertfile="+url.QueryEscape(authority))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if product, _ := conn.Server(); product != "RabbitMQ" {
			t.Errorf("got %q", product)
		}
		if err := conn.Publish(t.Context(), retryrmq.Publishing{RoutingKey: "nowhere"}); !errors.Is(err, retryrmq.ErrUnroutable) {
			t.Errorf("got %v", err)
		}
		// A file in which there is no certificate.
		if _, err := retryrmq.Dial(t.Context(), s.b.amqps+"?cacertfile=conn_test.go"); !errors.Is(err, retryrmq.ErrTLSFailed) {
			t.Errorf("got %v", err)
		}
	})
}
