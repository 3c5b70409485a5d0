// A web service: POST /emails publishes, a consumer sends, GET /metrics shows metrics. Ctrl-C stops everything cleanly.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

const queue = "example.emails"

type email struct{ To, Text string }

func send(_ context.Context, m *retryrmq.Message) error {
	var mail email
	if err := json.Unmarshal(m.Body, &mail); err != nil {
		return retryrmq.Permanent(err)
	}
	if m.Attempt == 1 {
		return errors.New("the mail server is busy")
	}
	fmt.Printf("sent to %s, attempt %d\n", mail.To, m.Attempt)
	return nil
}

// The message may not be stored, so the client should try again.
func isUnavailable(err error) bool {
	kinds := []error{retryrmq.ErrUnreachable, retryrmq.ErrConnectionLost, retryrmq.ErrTimeout, retryrmq.ErrNotConfirmed,
		retryrmq.ErrClosed, context.DeadlineExceeded}
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

func run(ctx context.Context) error {
	conn, err := retryrmq.DialEnv(ctx, retryrmq.AppVersion("1.4.0"))
	if err != nil {
		return err
	}
	defer conn.Close()

	routes := http.NewServeMux()
	routes.HandleFunc("POST /emails", func(w http.ResponseWriter, r *http.Request) {
		var mail email
		if err := json.NewDecoder(r.Body).Decode(&mail); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, _ := json.Marshal(mail)
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		if err := conn.Publish(ctx, retryrmq.Publishing{RoutingKey: queue, Body: body}); err != nil {
			log.Print(err) // not for the client: it names the broker
			if isUnavailable(err) {
				http.Error(w, "try again later", http.StatusServiceUnavailable)
			} else {
				http.Error(w, "something went wrong", http.StatusInternalServerError)
			}
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	routes.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		fmt.Fprint(w, conn.MetricsText())
	})
	routes.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { // whether it is ready; why not is in the log
		if !conn.Healthy() {
			http.Error(w, "not connected to the broker", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "fine")
	})
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("ADDRESS"), "127.0.0.1:8080"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	fmt.Printf("listening on http://%s\n", listener.Addr())

	err = conn.Consume(ctx, queue, send, // until Ctrl-C, then it drains
		retryrmq.DLX(), retryrmq.Retry(retryrmq.Exponential(500*time.Millisecond, time.Minute)),
		retryrmq.HandlerTimeout(30*time.Second))

	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(end))
}

func main() {
	// ANCHOR: logger
	retryrmq.SetLogger(slog.New(slog.NewJSONHandler(os.Stderr, nil)))
	// ANCHOR_END: logger
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}
