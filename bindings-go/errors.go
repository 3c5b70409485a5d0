package retryrmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// Error is the type of every error of this package. None of them means that a delivered message was lost: what was not acknowledged stays in its
// queue.
//
// Compare with [errors.Is] and the sentinels below, or look at the code, which is the same in every language.
type Error struct {
	// Code is the code of the error, the same in every language.
	Code string
	// Message is one sentence that names what to change. It never contains a password.
	Message string
	// Detail is its cause, for a log; often empty.
	Detail string
}

// Error returns the message.
func (e *Error) Error() string { return "retryrmq: " + e.Message }

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Code == e.Code
}

// One of each kind, for errors.Is.
var (
	// ErrInvalidURL: the broker's address cannot be used: unknown scheme, missing host, port out of range, or hosts of different
	// clusters.
	ErrInvalidURL = errorKind("invalid_url", "the broker's address cannot be used")
	// ErrInvalidOption: an option has a value that cannot work. Nothing was subscribed or published.
	ErrInvalidOption = errorKind("invalid_option", "an option has a value that cannot work")
	// ErrInvalidPolicy: a retry policy or a rule cannot be parsed, or cannot work.
	ErrInvalidPolicy = errorKind("invalid_policy", "a retry policy cannot be read or cannot work")
	// ErrUnreachable: no usable connection: nothing answers, it is not AMQP 0-9-1, the broker is still starting, or its limit of connections or
	// channels is reached.
	ErrUnreachable = errorKind("unreachable", "nothing answers at the broker's address")
	// ErrAuthenticationFailed: the broker refused the login (AMQP 403 while connecting), or the password file or the function of
	// [WithCredentials] failed.
	ErrAuthenticationFailed = errorKind("authentication_failed", "the broker refuses the user or the password")
	// ErrTLSFailed: the TLS handshake failed, or a certificate file contains no certificate.
	ErrTLSFailed = errorKind("tls_failed", "the TLS handshake failed")
	// ErrVhostNotFound: the virtual host does not exist (AMQP 530 while connecting).
	ErrVhostNotFound = errorKind("vhost_not_found", "the virtual host does not exist")
	// ErrQueueNotFound: a queue, or an exchange that the strategy needs, does not exist, and this call does not create it (AMQP 404).
	ErrQueueNotFound = errorKind("queue_not_found", "the queue does not exist")
	// ErrMismatch: a queue or exchange exists with other arguments (AMQP 406), or is a stream or an auto-delete queue and cannot be used.
	ErrMismatch = errorKind("mismatch", "a queue or exchange exists with other arguments")
	// ErrAccessRefused: the user lacks a permission (AMQP 403; the error message names the pattern), or another connection uses the queue
	// exclusively (AMQP 403 or 405).
	ErrAccessRefused = errorKind("access_refused", "the user lacks a permission")
	// ErrStrategyRefused: this broker or this queue cannot serve the chosen strategy safely. The error message names one that can.
	ErrStrategyRefused = errorKind("strategy_refused", "the broker cannot serve the chosen strategy")
	// ErrUnroutable: no queue takes a message with this exchange and routing key (AMQP basic.return), or there is no such exchange (AMQP 404).
	// It was not stored.
	ErrUnroutable = errorKind("unroutable", "no queue takes the message")
	// ErrNotConfirmed: the broker rejected a publish (AMQP basic.nack). Publish it again after a pause.
	ErrNotConfirmed = errorKind("not_confirmed", "the broker did not confirm the message")
	// ErrTooLarge: the message does not fit: a name longer than 255 bytes, headers larger than one frame, or a body larger than the broker allows.
	ErrTooLarge = errorKind("too_large", "the message does not fit")
	// ErrTimeout: the broker did not answer in time, the nodes of the queue are down, or a handler ran longer than the drain timeout.
	ErrTimeout = errorKind("timeout", "it took too long")
	// ErrConnectionLost: the connection was lost. The client reconnects in the background.
	ErrConnectionLost = errorKind("connection_lost", "the connection was lost")
	// ErrClosed: the connection was closed, or a bug in retryrmq ended the consumer.
	ErrClosed = errorKind("closed", "the connection was closed")
	// ErrBroker: any other refusal by the broker. The error message quotes it.
	ErrBroker = errorKind("broker_error", "the broker refused")
	// ErrFault: a bug in retryrmq. The operation may or may not have taken effect.
	ErrFault = errorKind("error", "this is a bug in retryrmq")
)

func errorKind(code, message string) *Error { return &Error{Code: code, Message: message} }

func invalidOption(format string, args ...any) *Error {
	return &Error{Code: ErrInvalidOption.Code, Message: fmt.Sprintf(format, args...)}
}

// Turns an error of the native half into one of ours; other errors stay as they are.
func asError(err error) error {
	var failure *native.Error
	if errors.As(err, &failure) {
		return &Error{Code: failure.Code, Message: goSentence(failure.Code, failure.Message), Detail: failure.Detail}
	}
	return err
}

// Sentences of the native half use the core's names of options; these replace them by Go's.
var (
	goOptions = strings.NewReplacer("`dlx`", "`DLX`", "`fatal`", "`Fatal`", "`park`", "`NoParking`", "`retry`", "`Retry`", "`strategy`", "`Strategy`", "`rules`", "`Rules`",
		"`prefetch`", "`Prefetch`", "`prefetch_bytes`", "`PrefetchBytes`", "`concurrency`", "`Concurrency`", "`handler_timeout`", "`HandlerTimeout`", "`pause`", "`Pause`",
		"`drain_timeout`", "`DrainTimeout`", "`batch`", "`Batch`", "`batch_wait`", "`BatchWait`", "`limits.crashes`", "`CrashLimit`", "`expiration`", "`Expiration`", "`work_queue`", "`WorkQueue`",
		"no JSON object of arguments such as {\"x-max-priority\": 10}", "no retryrmq.Table of arguments")
	goPhrases = strings.NewReplacer("with `dlx` and `declare` on", "with `DLX` and without `NoDeclare`",
		"leave `declare` on and", "leave `NoDeclare` out and", "set `declare` off", "add `NoDeclare`",
		"with `declare` off it is not created", "with `NoDeclare` it is not created", "turn `declare` on", "remove `NoDeclare`",
		"`queue_type` as `classic`", "`QueueType(Classic)`",
		"queue `work_queue`", "queue `work_queue`", "`work_queue`", "`WorkQueue`") // a queue may be called so
)

func goSentence(code, sentence string) string {
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
		return invalidOption("the context is nil; pass context.Background() if there is none")
	}
	return nil
}

// The native half does not check that texts are UTF-8.
func checkText(option, text string) error {
	if !utf8.ValidString(text) {
		return invalidOption("`%s` is not valid UTF-8: %q", option, head(text))
	}
	return nil
}

func head(text string) string {
	if len(text) > 40 {
		return text[:40]
	}
	return text
}
