package retryrmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Error is every error of this package. None of them means that a message was lost.
//
// Compare with [errors.Is] and the sentinels below, or look at the code, which is the same in every language.
type Error struct {
	// Code names the kind.
	Code string
	// Message is one sentence that names what to change. It never contains a password.
	Message string
	// Detail is what stands behind it, for a log; often empty.
	Detail string
}

// Error is the message.
func (e *Error) Error() string { return "retryrmq: " + e.Message }

// Is says whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}

// One of each kind, for errors.Is.
var (
	// ErrInvalidURL: the broker's address cannot be used.
	ErrInvalidURL = kind("invalid_url", "the broker's address cannot be used")
	// ErrInvalidOption: an option has a value that cannot work; nothing was subscribed or published.
	ErrInvalidOption = kind("invalid_option", "an option has a value that cannot work")
	// ErrInvalidPolicy: a retry policy or a rule cannot be read or cannot work.
	ErrInvalidPolicy = kind("invalid_policy", "a retry policy cannot be read or cannot work")
	// ErrUnreachable: nothing answers at the address, or what answers does not speak AMQP 0-9-1.
	ErrUnreachable = kind("unreachable", "nothing answers at the broker's address")
	// ErrAuthenticationFailed: the broker refuses the user or the password, or the function of [WithCredentials] or a file gives none.
	ErrAuthenticationFailed = kind("authentication_failed", "the broker refuses the user or the password")
	// ErrTLSFailed: the TLS handshake failed, or a certificate file holds no certificate.
	ErrTLSFailed = kind("tls_failed", "the TLS handshake failed")
	// ErrVhostNotFound: the virtual host does not exist.
	ErrVhostNotFound = kind("vhost_not_found", "the virtual host does not exist")
	// ErrQueueNotFound: the queue does not exist and may not be declared.
	ErrQueueNotFound = kind("queue_not_found", "the queue does not exist")
	// ErrMismatch: a queue or exchange exists with other arguments.
	ErrMismatch = kind("mismatch", "a queue or exchange exists with other arguments")
	// ErrAccessRefused: the user lacks a permission; the message names the pattern that is missing.
	ErrAccessRefused = kind("access_refused", "the user lacks a permission")
	// ErrStrategyRefused: the broker or the queue cannot serve the chosen strategy safely; the message names one that can.
	ErrStrategyRefused = kind("strategy_refused", "the broker cannot serve the chosen strategy")
	// ErrUnroutable: no queue takes a message with this exchange and routing key.
	ErrUnroutable = kind("unroutable", "no queue takes the message")
	// ErrNotConfirmed: the broker did not confirm a message; publish it again after a pause.
	ErrNotConfirmed = kind("not_confirmed", "the broker did not confirm the message")
	// ErrTooLarge: the message does not fit: a name above 255 bytes, or headers above one frame.
	ErrTooLarge = kind("too_large", "the message does not fit")
	// ErrTimeout: the broker, or a handler at the end, took too long.
	ErrTimeout = kind("timeout", "it took too long")
	// ErrConnectionLost: the connection was lost; it is re-made in the background.
	ErrConnectionLost = kind("connection_lost", "the connection was lost")
	// ErrClosed: the connection was closed.
	ErrClosed = kind("closed", "the connection was closed")
	// ErrBroker: any other refusal by the broker; the message quotes it.
	ErrBroker = kind("broker_error", "the broker refused")
)

func kind(code, message string) *Error { return &Error{Code: code, Message: message} }

func badOption(format string, args ...any) *Error {
	return &Error{Code: ErrInvalidOption.Code, Message: fmt.Sprintf(format, args...)}
}

// An error of the native half as one of ours; everything else stays as it is.
func ours(err error) error {
	var refusal *native.Refusal
	if errors.As(err, &refusal) {
		return &Error{Code: refusal.Code, Message: inGo(refusal.Code, refusal.Message), Detail: refusal.Detail}
	}
	return err
}

// Sentences of the native half name options as all languages do; here they are those of Go.
var (
	goOptions = strings.NewReplacer("`dlx`", "`DLX`", "`fatal`", "`Fatal`", "`park`", "`NoParking`", "`retry`", "`Retry`", "`strategy`", "`Strategy`", "`rules`", "`Rules`",
		"`prefetch`", "`Prefetch`", "`concurrency`", "`Concurrency`", "`handler_timeout`", "`HandlerTimeout`", "`pause`", "`Pause`",
		"`drain_timeout`", "`DrainTimeout`", "`limits.crashes`", "`CrashLimit`", "`expiration`", "`Expiration`", "`work_queue`", "`WorkQueue`",
		"no JSON object of arguments such as {\"x-max-priority\": 10}", "no retryrmq.Table of arguments")
	goPhrases = strings.NewReplacer("with `dlx` and `declare` on", "with `DLX` and without `NoDeclare`",
		"leave `declare` on and", "leave `NoDeclare` out and", "set `declare` off", "add `NoDeclare`",
		"queue `work_queue`", "queue `work_queue`", "`work_queue`", "`WorkQueue`") // a queue may be called so
)

func inGo(code, sentence string) string {
	if about, ok := strings.CutSuffix(sentence, "`reserved_name`"); ok {
		return about + "`ReservedName`" // and it names queues
	}
	if code == ErrInvalidOption.Code {
		return goOptions.Replace(sentence) // no other one: those name queues, which may be called anything
	}
	return goPhrases.Replace(sentence)
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return badOption("the context is nil; pass context.Background() if there is none")
	}
	return nil
}

// The native half takes texts to be UTF-8, unseen.
func checkText(option, text string) error {
	if !utf8.ValidString(text) {
		return badOption("`%s` is not valid UTF-8: %q", option, head(text))
	}
	return nil
}

func head(text string) string {
	if len(text) > 40 {
		return text[:40]
	}
	return text
}
