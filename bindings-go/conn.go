package retryrmq

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Conn is a connection to a broker: consumers, publishing and parked messages all start here. When it is lost, it is re-made in
// the background. It may be used by many goroutines.
type Conn struct {
	client *native.Client
	asker  *asker
	// Its own, or nil.
	logger *slog.Logger
	log    *journal

	mu sync.Mutex
	// Closed when the end was asked for.
	closing chan struct{}
	// Closed at the end.
	closed chan struct{}
	// Calls in progress that need the client, consumers among them.
	calls sync.WaitGroup
	// Consumers by queue, any of which tells the numbers of all, and the last numbers of queues without any.
	consuming map[string][]*native.Subscription
	stats     map[string]Stats
}

// DialOption is an option of [Dial].
type DialOption func(*dialling)

type dialling struct {
	native.Dialling
	// Whether there is a function that is asked for the login.
	asks   bool
	ask    func(context.Context) (Login, error)
	logger *slog.Logger
}

// AppVersion is the version of your application, which the history of a failed message shows.
func AppVersion(version string) DialOption { return func(d *dialling) { d.AppVersion = version } }

// QueueTypeName names the type of a queue.
type QueueTypeName string

// The types of the queues in which messages wait and are parked.
const (
	Quorum  QueueTypeName = "quorum"
	Classic QueueTypeName = "classic"
)

// QueueType is the type of the queues in which messages wait and are parked; Quorum by default.
func QueueType(name QueueTypeName) DialOption {
	return func(d *dialling) { d.QueueType = string(name) }
}

// Wait has [Dial] try until a broker that cannot be reached yet is there, or the context ends; the log has a warning for each try. So
// does [Conn.Consume] where the broker went again or its queues have no leaders yet. A broker that refuses is not waited for.
func Wait() DialOption { return func(d *dialling) { d.Wait = true } }

// EndWhenRefused ends the connection when the broker refuses its login or its virtual host after it was lost: Consume returns that
// error, [ErrAuthenticationFailed] or [ErrVhostNotFound]. Without it the connection goes on trying, and [EventLoginRefused] and
// [Conn.Trouble] say so.
func EndWhenRefused() DialOption { return func(d *dialling) { d.EndWhenRefused = true } }

// DialEnv connects to the address in the environment variable RETRYRMQ_URL, or without it to amqp://localhost, as every
// language and the command do without an address. Otherwise it is as [Dial].
func DialEnv(ctx context.Context, options ...DialOption) (*Conn, error) {
	url := strings.TrimSpace(os.Getenv("RETRYRMQ_URL"))
	if url == "" {
		url = "amqp://localhost"
	}
	return Dial(ctx, url, options...)
}

// Dial connects. The address is amqp://user:password@host:port/vhost, or amqps:// with TLS; what is left out is guest, guest,
// localhost, 5672 (5671 with TLS) and /. Of several hosts, as in amqp://user:password@one,two:5673,three/vhost, or several such
// addresses with commas between them, any will do. Its parameters are heartbeat (seconds), connection_timeout (milliseconds), name,
// passwordfile and userfile (read at every connection), and with TLS cacertfile, certfile, keyfile (PEM files),
// server_name_indication and auth_mechanism=external. [WithCredentials] gives the login instead. When ctx ends before, the
// attempt is given up.
func Dial(ctx context.Context, url string, options ...DialOption) (*Conn, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, native.ContextError(ctx)
	}
	d := dialling{Dialling: native.Dialling{URL: url}}
	for _, option := range options {
		if option == nil {
			return nil, badOption("an option is nil")
		}
		option(&d)
	}
	for _, text := range [][2]string{{"url", url}, {"AppVersion", d.AppVersion}, {"QueueType", d.QueueType}} {
		if err := checkText(text[0], text[1]); err != nil {
			if text[0] == "url" { // without quoting it: it may hold a password
				err = &Error{Code: ErrInvalidURL.Code, Message: "the broker's address is not valid UTF-8"}
			}
			return nil, err
		}
	}
	if d.asks && d.ask == nil {
		return nil, badOption("the function of `WithCredentials` is nil")
	}
	log := hold(d.logger)
	asker := newAsker(ctx, &d)
	client, err := dial(ctx, &d.Dialling)
	if err != nil {
		asker.end()
		release(d.logger)
		return nil, err
	}
	return &Conn{
		client:    client,
		asker:     asker,
		logger:    d.logger,
		log:       log,
		closing:   make(chan struct{}),
		closed:    make(chan struct{}),
		consuming: make(map[string][]*native.Subscription),
		stats:     make(map[string]Stats),
	}, nil
}

func dial(ctx context.Context, d *native.Dialling) (*native.Client, error) {
	op, err := native.Connect(d)
	if err != nil {
		return nil, ours(err)
	}
	client, err := op.Client(ctx)
	return client, ours(err)
}

// Close ends all consumers as if their contexts had ended, waits for them, and closes the connection. A loop over [Conn.Parked]
// ends with [ErrClosed], and may call Close itself. A handler and a listener of [OnEvent] must not, since Close would wait for
// them: have them cancel the context of Consume instead. Handlers that still run may publish. A second call waits for the first. It returns nil.
func (c *Conn) Close() error {
	if c == nil || c.client == nil {
		return errNotDialled
	}
	c.mu.Lock()
	select {
	case <-c.closing:
		c.mu.Unlock()
		<-c.closed
		return nil
	default:
	}
	close(c.closing)
	c.mu.Unlock()

	c.calls.Wait()
	if op, err := c.client.Close(); err == nil {
		_ = op.Wait(context.Background())
	}
	c.client.Free()
	c.asker.end()
	release(c.logger)
	close(c.closed)
	return nil
}

var errNotDialled = badOption("this is no connection; retryrmq.Dial makes one")

// Begins a call that needs the client.
func (c *Conn) enter() error { return c.begin(false) }

// As enter, also while the consumers of a closing connection drain: what their handlers publish belongs to what they handle.
func (c *Conn) enterToPublish() error { return c.begin(true) }

func (c *Conn) begin(whileDraining bool) error {
	if c == nil || c.client == nil {
		return errNotDialled
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closing:
		// A consumer is a call itself, so that Close waits for this one, too.
		if !whileDraining || len(c.consuming) == 0 {
			return ErrClosed
		}
	default:
	}
	c.calls.Add(1)
	return nil
}

func (c *Conn) leave() { c.calls.Done() }

// A context that also ends when the connection is closed; whyEnded tells.
func (c *Conn) whileOpen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-c.closing:
			cancel(ErrClosed)
		case <-stop:
		}
	}()
	return ctx, func() {
		close(stop)
		cancel(nil)
	}
}

// ErrClosed in place of err when that comes of the end of such a context by Close.
func whyEnded(ctx context.Context, err error) error {
	if err != nil && context.Cause(ctx) == ErrClosed {
		return ErrClosed
	}
	return err
}

// Stats are the numbers of a queue since the connection was made; zero for one that was never consumed by it.
func (c *Conn) Stats(queue string) Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if subscriptions := c.consuming[queue]; len(subscriptions) > 0 {
		return newStats(subscriptions[0].Stats())
	}
	return c.stats[queue]
}

// MetricsText is the counters of all queues in the OpenMetrics text format, which Prometheus reads: to mount in the service's
// own endpoint, with the Content-Type "application/openmetrics-text; version=1.0.0; charset=utf-8".
func (c *Conn) MetricsText() string {
	if c.enter() != nil {
		return ""
	}
	defer c.leave()
	return c.client.MetricsText()
}

// Healthy says whether both connections, the one that consumes and the one that publishes, are open: for a health check.
func (c *Conn) Healthy() bool { return c.Trouble() == "" }

// Trouble is why a connection is not open: what the last try to re-make it met. It is empty while all is well.
func (c *Conn) Trouble() string {
	err := c.enter()
	if err == nil {
		defer c.leave()
		var trouble string
		if trouble, err = c.client.Trouble(); err == nil {
			return trouble
		}
	}
	return ours(err).Error()
}

// Reconnects is how often the connection was re-made.
func (c *Conn) Reconnects() int {
	if c.enter() != nil {
		return 0
	}
	defer c.leave()
	return int(c.client.Reconnects())
}

// Server is what the broker said of itself: product and version.
func (c *Conn) Server() (product, version string) {
	if c.enter() != nil {
		return "", ""
	}
	defer c.leave()
	return c.client.Server()
}

// String names it, without the address.
func (c *Conn) String() string {
	product, version := c.Server()
	return "retryrmq connection to " + product + " " + version
}
