package retryrmq

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Conn is a client of one broker or cluster: it consumes, publishes and gives access to parked messages. It holds two connections, one to
// consume and acknowledge, one to publish, and reconnects each in the background when it is lost. Many goroutines may use it at the same time.
type Conn struct {
	client *native.Client
	// Instead of a client, in a test.
	broker             FakeBroker
	credentialProvider *credentialProvider
	// Its own, or nil.
	logger *slog.Logger
	log    *asyncLogger
	// For all consumers, outermost first.
	middleware []Middleware
	// With middleware around it; nil without.
	publisher Publisher

	mu sync.Mutex
	// Closed when Close was called.
	closing chan struct{}
	// Closed at the end.
	closed chan struct{}
	// Calls in progress that need the client, consumers among them.
	calls sync.WaitGroup
	// Calls of Publish in progress.
	publishes sync.WaitGroup
	// Consumers by queue; any of them has the counters of all. And the last counters of queues without a consumer.
	consuming map[string][]*native.Subscription
	stats     map[string]Stats
}

// DialOption is an option of [Dial].
type DialOption func(*dialOptions)

type dialOptions struct {
	native.ConnectOptions
	// Whether a function gives the login.
	hasCredentials bool
	ask            func(context.Context) (Login, error)
	logger         *slog.Logger
	// Outermost first.
	middleware []Middleware
	publishing []PublishMiddleware
}

// AppVersion sets the version of your application, for the history of failed messages.
func AppVersion(version string) DialOption { return func(d *dialOptions) { d.AppVersion = version } }

// QueueTypeName names the type of a queue.
type QueueTypeName string

// The types of waiting and parking queues.
const (
	Quorum  QueueTypeName = "quorum"
	Classic QueueTypeName = "classic"
)

// QueueType sets the type of the waiting and parking queues; Quorum by default.
func QueueType(name QueueTypeName) DialOption {
	return func(d *dialOptions) { d.QueueType = string(name) }
}

// Wait makes [Dial] keep trying while the broker cannot be reached, until its context ends. [Conn.Consume] does the same while the broker is away
// again, or its queues have no leaders yet. Each reason is logged as a warning, once a minute. A broker that answers and refuses is an error at once.
func Wait() DialOption { return func(d *dialOptions) { d.Wait = true } }

// EndWhenRefused ends the connection when the broker refuses the login or the virtual host after a connection was lost: Consume returns that
// error, [ErrAuthenticationFailed] or [ErrVhostNotFound]. Without it the connection keeps trying, and [EventLoginRefused] and [Conn.Trouble]
// report it.
func EndWhenRefused() DialOption { return func(d *dialOptions) { d.EndWhenRefused = true } }

// DialEnv is like [Dial], with the URL from the environment variable RETRYRMQ_URL. If it is not set, the URL is amqp://localhost. The command and
// the other languages use the same default.
func DialEnv(ctx context.Context, options ...DialOption) (*Conn, error) {
	url := strings.TrimSpace(os.Getenv("RETRYRMQ_URL"))
	if url == "" {
		url = "amqp://localhost"
	}
	return Dial(ctx, url, options...)
}

// Dial connects to the broker at url: amqp://user:password@host:port/vhost, or amqps:// for TLS. The defaults are guest, guest, localhost, 5672
// (5671 with TLS) and /. A URL may have several hosts of a cluster, as in amqp://user:password@one,two:5673,three/vhost, and several URLs may be
// separated by commas; any host that answers is used.
//
// The query parameters are heartbeat (seconds), connection_timeout (milliseconds), name, passwordfile and userfile (files, read for every
// connection), and with TLS cacertfile, certfile, keyfile (PEM files), server_name_indication and auth_mechanism=external. [WithCredentials]
// replaces the login of the URL.
//
// It returns [ErrInvalidURL], [ErrUnreachable], [ErrAuthenticationFailed], [ErrVhostNotFound], [ErrTLSFailed] or [ErrTimeout], or the error of
// ctx if that ends first. Once connected, the Conn reconnects in the background.
func Dial(ctx context.Context, url string, options ...DialOption) (*Conn, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, native.ContextError(ctx)
	}
	d := dialOptions{ConnectOptions: native.ConnectOptions{URL: url}}
	for _, option := range options {
		if option == nil {
			return nil, invalidOption("an option is nil")
		}
		option(&d)
	}
	for _, text := range [][2]string{{"url", url}, {"AppVersion", d.AppVersion}, {"QueueType", d.QueueType}} {
		if err := checkText(text[0], text[1]); err != nil {
			if text[0] == "url" { // not quoted: it may contain a password
				err = &Error{Code: ErrInvalidURL.Code, Message: "the broker's address is not valid UTF-8"}
			}
			return nil, err
		}
	}
	if d.hasCredentials && d.ask == nil {
		return nil, invalidOption("the function of `WithCredentials` is nil")
	}
	c, err := newConn(&d)
	if err != nil {
		return nil, err
	}
	c.credentialProvider = newCredentialProvider(ctx, &d)
	if c.client, err = dial(ctx, &d.ConnectOptions); err != nil {
		c.credentialProvider.end()
		releaseLogger(d.logger)
		return nil, err
	}
	return c, nil
}

// A Conn that is not connected. Whoever made it releases its logger.
func newConn(d *dialOptions) (*Conn, error) {
	if err := d.checkMiddleware(); err != nil {
		return nil, err
	}
	c := &Conn{
		logger:     d.logger,
		middleware: d.middleware,
		closing:    make(chan struct{}),
		closed:     make(chan struct{}),
		consuming:  make(map[string][]*native.Subscription),
		stats:      make(map[string]Stats),
	}
	var err error
	if c.publisher, err = c.wrapPublish(d.publishing); err != nil {
		return nil, err
	}
	c.log = acquireLogger(d.logger)
	return c, nil
}

func dial(ctx context.Context, d *native.ConnectOptions) (*native.Client, error) {
	op, err := native.Connect(d)
	if err != nil {
		return nil, asError(err)
	}
	client, err := op.Client(ctx)
	return client, asError(err)
}

// Close ends all consumers as if their contexts had ended, waits for them, and closes both connections. Handlers that still run may publish
// meanwhile. A loop over [Conn.Parked] ends with [ErrClosed], and may call Close itself. A handler and a function of [OnEvent] must not call it,
// because Close waits for them; cancel the context of Consume instead. A second call waits for the first. It returns nil.
func (c *Conn) Close() error {
	if !c.isMade() {
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
	if c.broker != nil {
		c.broker.Closing()
	}

	c.calls.Wait()
	if c.client != nil {
		if op, err := c.client.Close(); err == nil {
			_ = op.Wait(context.Background())
		}
	}
	// The core has answered them, those that wait for a broker in trouble as well.
	c.publishes.Wait()
	if c.client != nil {
		c.client.Free()
	}
	c.credentialProvider.end()
	releaseLogger(c.logger)
	close(c.closed)
	return nil
}

var errNotDialled = invalidOption("this Conn was not created by Dial; call retryrmq.Dial")

func (c *Conn) isMade() bool { return c != nil && (c.client != nil || c.broker != nil) }

// Begins a call that needs the client.
func (c *Conn) enter() error { return c.begin(false) }

// Like enter, even while the consumers of a closing connection drain: their handlers may still publish.
func (c *Conn) enterToPublish() error { return c.begin(true) }

func (c *Conn) begin(publishes bool) error {
	if !c.isMade() {
		return errNotDialled
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closing:
		// A consumer is a call itself, so that Close waits for this one, too.
		if !publishes || len(c.consuming) == 0 {
			return ErrClosed
		}
	default:
	}
	if publishes {
		c.publishes.Add(1)
	} else {
		c.calls.Add(1)
	}
	return nil
}

func (c *Conn) leave() { c.calls.Done() }

// A context that also ends when the connection is closed; see endReason.
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

// ErrClosed instead of err, if Close ended the context.
func endReason(ctx context.Context, err error) error {
	if err != nil && context.Cause(ctx) == ErrClosed {
		return ErrClosed
	}
	return err
}

// Stats returns the counters of a queue since the connection was made. They are zero for a queue that it never consumed.
func (c *Conn) Stats(queue string) Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if subscriptions := c.consuming[queue]; len(subscriptions) > 0 && c.broker == nil {
		return newStats(subscriptions[0].Stats())
	}
	return c.stats[queue]
}

// MetricsText returns all metrics of this connection in the OpenMetrics text format, which Prometheus reads. Serve it with the Content-Type
// "application/openmetrics-text; version=1.0.0; charset=utf-8". The number of parked messages is the one at the previous call. The text is
// empty after [Conn.Close].
func (c *Conn) MetricsText() string {
	if c.enter() != nil {
		return ""
	}
	defer c.leave()
	if c.broker != nil {
		return "# EOF\n"
	}
	return c.client.MetricsText()
}

// Healthy reports whether both connections are open, the consuming and the publishing one, and the broker reads what is published. It is for a health
// check; nothing is sent to the broker. During a memory or disk alarm it is false once something was published.
func (c *Conn) Healthy() bool { return c.Trouble() == "" }

// Trouble returns why the connection is not healthy: the error of the last attempt to reconnect, or that the broker reads nothing. It is empty if it is.
func (c *Conn) Trouble() string {
	err := c.enter()
	if err == nil {
		defer c.leave()
		if c.broker != nil {
			return c.broker.Trouble()
		}
		var trouble string
		if trouble, err = c.client.Trouble(); err == nil {
			return trouble
		}
	}
	return asError(err).Error()
}

// Reconnects returns how often a connection was lost and reconnected.
func (c *Conn) Reconnects() int {
	if c.enter() != nil {
		return 0
	}
	defer c.leave()
	if c.broker != nil {
		return 0
	}
	return int(c.client.Reconnects())
}

// Server returns what the broker said about itself when it was connected: product and version.
func (c *Conn) Server() (product, version string) {
	if c.enter() != nil {
		return "", ""
	}
	defer c.leave()
	if c.broker != nil {
		return "fake", native.Version()
	}
	return c.client.Server()
}

// String names the broker, without its address.
func (c *Conn) String() string {
	product, version := c.Server()
	return "retryrmq connection to " + product + " " + version
}
