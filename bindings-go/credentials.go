package retryrmq

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Login is a user and a password, see [WithCredentials]. Printed, logged or written as JSON, it does not show the password.
type Login struct {
	// User is the user. It may be empty with an OAuth 2 token, because RabbitMQ reads the user from the token.
	User string
	// Password is the password, or a token.
	Password string
	// ExpiresIn is how long from now the broker accepts the password. Before that time ends, the function is called again and the open
	// connections are renewed. 0 means that it does not expire; if a token is a JWT, its lifetime is read from exp.
	ExpiresIn time.Duration
}

// String returns the user, without the password.
func (l Login) String() string {
	if l.ExpiresIn != 0 {
		return fmt.Sprintf("login of %q (expires in %v)", l.User, l.ExpiresIn)
	}
	return fmt.Sprintf("login of %q", l.User)
}

// GoString is like String.
func (l Login) GoString() string { return l.String() }

// Format prints the same for every verb: %d of a struct would show its texts.
func (l Login) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, l.String()) }

// LogValue is the form that slog logs, without the password.
func (l Login) LogValue() slog.Value {
	return slog.GroupValue(slog.String("user", l.User), slog.Duration("expires_in", l.ExpiresIn))
}

// MarshalText is like String: a value that is logged as JSON may contain a Login.
func (l Login) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// WithCredentials calls ask for the login, instead of using that of the URL. It is called whenever one of the two connections is opened or
// reconnected, and again before a password expires, to renew the open connections.
//
// ask runs on a goroutine of its own, sometimes on two at the same time. Its context has the values of Dial's context. It ends after 20 seconds,
// with the context of [Dial] while that connects, and with [Conn.Close].
//
// If ask returns an error, panics, or does not answer in time, the login has failed. Dial then returns [ErrAuthenticationFailed]. After a lost
// connection it is tried again, even with [EndWhenRefused], because the broker has not refused anything; [Conn.Trouble] says why. The text of
// the error is shown and logged, so it must not contain a secret.
//
// [Conn.Close] waits at most a second for a call whose context has ended. While eight calls have not returned, ask is not called again.
func WithCredentials(ask func(ctx context.Context) (Login, error)) DialOption {
	return func(d *dialOptions) { d.hasCredentials, d.ask = true, ask }
}

const (
	// The most calls of the function that may run at a time. Two or three are needed; further ones hang, perhaps forever.
	maxCredentialCalls = 8
	// How long the end waits for calls whose contexts have ended.
	credentialEndTimeout = time.Second
)

// Answers the native half's requests for credentials.
type credentialProvider struct {
	ask    func(context.Context) (Login, error)
	number uint64
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool
	// Ends the contexts of requests that are open.
	open map[uint64]context.CancelFunc
	// Calls of the function.
	running int
	// Closed when no call runs any more, after the end.
	idle chan struct{}
}

// The provider of one connection; nil without a function.
func newCredentialProvider(ctx context.Context, d *dialOptions) *credentialProvider {
	if !d.hasCredentials {
		return nil
	}
	p := &credentialProvider{ask: d.ask, open: map[uint64]context.CancelFunc{}, idle: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.number = native.AddCredentialProvider(p.onRequest)
	d.Credentials = p.number
	return p
}

// Gets a request, or the end of one, on the goroutine that fetches all notifications. It must not wait.
func (p *credentialProvider) onRequest(request uint64, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if over {
		if cancel := p.open[request]; cancel != nil {
			cancel()
		}
		return
	}
	switch {
	case p.ended:
		native.AnswerCredentials(request, nil, "its connection was closed")
	case p.running >= maxCredentialCalls:
		native.AnswerCredentials(request, nil, fmt.Sprintf("%d calls of it have not returned; have it end with its context", maxCredentialCalls))
	default:
		ctx, cancel := context.WithCancel(p.ctx)
		p.open[request] = cancel
		p.running++
		go p.answer(ctx, request)
	}
}

func (p *credentialProvider) answer(ctx context.Context, request uint64) {
	var login *native.Login
	why := "it ended its goroutine (runtime.Goexit)"
	// Deferred, so that it also runs after runtime.Goexit.
	defer func() {
		native.AnswerCredentials(request, login, why)
		p.callEnded(request)
	}()
	login, why = p.call(ctx)
}

func (p *credentialProvider) callEnded(request uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[request]()
	delete(p.open, request)
	p.running--
	if p.ended && p.running == 0 {
		close(p.idle)
	}
}

// Calls the function. Returns a login, or why there is none.
func (p *credentialProvider) call(ctx context.Context) (*native.Login, string) {
	var login Login
	var err error
	if panicked := catchPanic(func() { login, err = p.ask(ctx) }); panicked != nil {
		// The value of the panic may contain the secret, unless it comes from the runtime.
		if said, ok := panicked.value.(runtime.Error); ok {
			return nil, "it panicked: " + short(valid(said.Error()))
		}
		return nil, fmt.Sprintf("it panicked with a %T", panicked.value)
	}
	if err != nil {
		return nil, short(valid(text(err)))
	}
	if err := login.check(); err != nil {
		return nil, err.Message
	}
	return &native.Login{User: login.User, Password: login.Password, ExpiresIn: uint64(login.ExpiresIn)}, ""
}

// The error for a login that cannot work. It does not quote the login.
func (l *Login) check() *Error {
	switch {
	case l.User == "" && l.Password == "":
		return invalidOption("it gave a Login with neither `User` nor `Password`")
	case strings.ContainsRune(l.User, 0) || strings.ContainsRune(l.Password, 0):
		return invalidOption("the `User` or the `Password` that it gave has a zero byte, which ends a text of a login")
	case !utf8.ValidString(l.User):
		return invalidOption("the `User` that it gave is not valid UTF-8")
	case !utf8.ValidString(l.Password):
		return invalidOption("the `Password` that it gave is not valid UTF-8")
	}
	return checkDuration("ExpiresIn", l.ExpiresIn)
}

// Ends: no further calls, no waiting for answers; the contexts of running calls end.
func (p *credentialProvider) end() {
	if p == nil {
		return
	}
	native.RemoveCredentialProvider(p.number)
	p.cancel()
	p.mu.Lock()
	p.ended = true
	if p.running == 0 {
		close(p.idle)
	}
	p.mu.Unlock()
	waitAtMost(credentialEndTimeout, p.idle)
}
