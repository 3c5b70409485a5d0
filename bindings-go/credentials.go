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

// Login is who logs in at the broker, see [WithCredentials]. Printed, logged or written as JSON it does not show the password.
type Login struct {
	// User is the user; it may be empty where the password is an OAuth 2 token, from which RabbitMQ reads who it is for.
	User string
	// Password is the password, or a token.
	Password string
	// ExpiresIn is how long from now the broker takes the password; before that the function is asked again, and the open connection
	// renewed. With 0 a password has no end, except a token that is a JWT and says it itself (exp).
	ExpiresIn time.Duration
}

// String names the user.
func (l Login) String() string {
	if l.ExpiresIn != 0 {
		return fmt.Sprintf("login of %q (expires in %v)", l.User, l.ExpiresIn)
	}
	return fmt.Sprintf("login of %q", l.User)
}

// GoString is the same.
func (l Login) GoString() string { return l.String() }

// Format is the same for every verb: %d of a struct would show its texts as well.
func (l Login) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, l.String()) }

// LogValue is what slog shows of it.
func (l Login) LogValue() slog.Value {
	return slog.GroupValue(slog.String("user", l.User), slog.Duration("expires_in", l.ExpiresIn))
}

// MarshalText is the same: what is logged as JSON may have a Login in it.
func (l Login) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// WithCredentials calls ask for the login, instead of taking that of the address: whenever one of the two connections is opened
// or re-made, and again before a password ends, with which the open connection is renewed.
//
// It is called on a goroutine of its own, and at times on two at once. Its context has the values of Dial's, and ends when nobody waits for
// the answer any more: after 20 seconds, with the context of [Dial] while that connects, and with [Conn.Close]. An error, a panic, or no
// answer in time is a login that failed: Dial returns it as [ErrAuthenticationFailed]; a connection that was lost goes on trying, and
// [Conn.Trouble] tells, also with [EndWhenRefused], since it is not the broker that refuses. The text of an error is part of that: keep
// secrets out of it.
//
// [Conn.Close] waits a second at most for an ask whose context has ended. While eight of them have not returned, no further one is called.
func WithCredentials(ask func(ctx context.Context) (Login, error)) DialOption {
	return func(d *dialling) { d.asks, d.ask = true, ask }
}

const (
	// As many calls of a function may run at a time. Two or three are needed; more have been left behind, each of them for ever perhaps.
	mostAsked = 8
	// As long the end waits for those whose contexts have ended.
	lastAnswer = time.Second
)

// Whom the native half asks who logs in.
type asker struct {
	ask    func(context.Context) (Login, error)
	number uint64
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	ended bool
	// Ends the contexts of questions that are open.
	open map[uint64]context.CancelFunc
	// Calls of the function.
	running int
	// Closed when there are none any more, after the end.
	idle chan struct{}
}

// A function for one connection; without one it is nil.
func newAsker(ctx context.Context, d *dialling) *asker {
	if !d.asks {
		return nil
	}
	a := &asker{ask: d.ask, open: map[uint64]context.CancelFunc{}, idle: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.number = native.AskedBy(a.asked)
	d.Credentials = a.number
	return a
}

// Hears of a question, or of its end, on the goroutine that fetches all news: it must not wait.
func (a *asker) asked(question uint64, over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if over {
		if cancel := a.open[question]; cancel != nil {
			cancel()
		}
		return
	}
	switch {
	case a.ended:
		native.Answer(question, nil, "its connection was closed")
	case a.running >= mostAsked:
		native.Answer(question, nil, fmt.Sprintf("%d calls of it have not returned; have it end with its context", mostAsked))
	default:
		ctx, cancel := context.WithCancel(a.ctx)
		a.open[question] = cancel
		a.running++
		go a.answer(ctx, question)
	}
}

func (a *asker) answer(ctx context.Context, question uint64) {
	var login *native.Login
	why := "it ended its goroutine (runtime.Goexit)"
	// Deferred for the case that it did.
	defer func() {
		native.Answer(question, login, why)
		a.answered(question)
	}()
	login, why = a.call(ctx)
}

func (a *asker) answered(question uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[question]()
	delete(a.open, question)
	a.running--
	if a.ended && a.running == 0 {
		close(a.idle)
	}
}

// Calls the function: a login, or why there is none.
func (a *asker) call(ctx context.Context) (*native.Login, string) {
	var login Login
	var err error
	if gone := safely(func() { login, err = a.ask(ctx) }); gone != nil {
		// What it panicked with may hold the secret, unless the runtime says it.
		if said, ok := gone.value.(runtime.Error); ok {
			return nil, "it panicked: " + short(valid(said.Error()))
		}
		return nil, fmt.Sprintf("it panicked with a %T", gone.value)
	}
	if err != nil {
		return nil, short(valid(text(err)))
	}
	if err := login.check(); err != nil {
		return nil, err.Message
	}
	return &native.Login{User: login.User, Password: login.Password, ExpiresIn: uint64(login.ExpiresIn)}, ""
}

// What is wrong with it, without quoting it.
func (l *Login) check() *Error {
	switch {
	case l.User == "" && l.Password == "":
		return badOption("it gave a Login with neither `User` nor `Password`")
	case strings.ContainsRune(l.User, 0) || strings.ContainsRune(l.Password, 0):
		return badOption("the `User` or the `Password` that it gave has a zero byte, which ends a text of a login")
	case !utf8.ValidString(l.User):
		return badOption("the `User` that it gave is not valid UTF-8")
	case !utf8.ValidString(l.Password):
		return badOption("the `Password` that it gave is not valid UTF-8")
	}
	return checkSpan("ExpiresIn", l.ExpiresIn)
}

// Nobody is asked any more, and no answer is waited for; what still runs has its context ended.
func (a *asker) end() {
	if a == nil {
		return
	}
	native.AskedNoMore(a.number)
	a.cancel()
	a.mu.Lock()
	a.ended = true
	if a.running == 0 {
		close(a.idle)
	}
	a.mu.Unlock()
	within(lastAnswer, a.idle)
}
