package retryrmqtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

// No simulation may leave a goroutine or a native object behind.
func TestMain(m *testing.M) {
	retryrmq.SetLogger(nil)
	code := m.Run()
	deadline := time.Now().Add(time.Minute)
	left := goleak.Find()
	for left != nil && time.Now().Before(deadline) {
		left = goleak.Find() // some end a moment later
	}
	if left != nil {
		fmt.Fprintln(os.Stderr, left)
		code = 1
	}
	for native.LiveObjects() != 0 && time.Now().Before(deadline) {
		runtime.Gosched() // the native half's own threads free what was given up
	}
	if left := native.LiveObjects(); left != 0 {
		fmt.Fprintf(os.Stderr, "%d native objects are left\n", left)
		code = 1
	}
	os.Exit(code)
}

func simulate(t *testing.T, handler retryrmq.Handler, options ...retryrmq.Option) *retryrmqtest.Result {
	t.Helper()
	messages := []retryrmq.Publishing{{Body: []byte("a"), MessageID: "a"}}
	result, err := retryrmqtest.Simulate(t.Context(), "orders", handler, messages,
		append([]retryrmq.Option{retryrmq.DLX()}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func failing(err error) retryrmq.Handler {
	return func(context.Context, *retryrmq.Message) error { return err }
}

func TestAFailingMessageIsParkedAfterTheDefaultPolicy(t *testing.T) {
	result := simulate(t, failing(errors.New("no")))
	if len(result.Attempts) != 6 || result.Elapsed != 341*time.Second {
		t.Errorf("%d attempts in %v", len(result.Attempts), result.Elapsed)
	}
	parked := result.Parked()
	if len(parked) != 1 || parked[0].Reason != "exhausted" {
		t.Fatalf("parked: %v", parked)
	}
	m := parked[0].Message
	if m.Headers()["x-retry-error"] != "no" || len(m.History()) != 6 || m.History()[0].Error != "no" {
		t.Errorf("headers: %v, history: %v", m.Headers(), m.History())
	}
	if _, marked := m.Headers()["retryrmq-simulated"]; marked {
		t.Error("the simulation's own header is shown")
	}
}

func TestASecondAttemptSeesTheFirst(t *testing.T) {
	var seen []string
	result := simulate(t, func(_ context.Context, m *retryrmq.Message) error {
		seen = append(seen, strings.TrimSpace(fmt.Sprintln(m.Attempt, m.Retries, m.LastError, m.FirstFailedAt.IsZero(), m.Queue, m.RoutingKey)))
		if m.Attempt == 1 {
			return errors.New("once")
		}
		return nil
	})
	if want := []string{"1 0  true orders orders", "2 1 once false orders orders"}; !reflect.DeepEqual(seen, want) {
		t.Errorf("got %q", seen)
	}
	if len(result.Acked()) != 1 || len(result.AttemptsOf(0)) != 2 {
		t.Errorf("%+v", result)
	}
}

type brokenPipe struct{ error }

func TestWhatAHandlerReturnsDecides(t *testing.T) {
	cause := errors.New("the bank is closed")
	for name, c := range map[string]struct {
		err    error
		became string
		delay  time.Duration
		reason string
		text   string
		kind   string
	}{
		"an error":           {cause, "retried", time.Second, "", "", ""},
		"a delay":            {retryrmq.After(cause, 30*time.Second), "retried", 30 * time.Second, "", "", ""},
		"a delay, wrapped":   {fmt.Errorf("order 7: %w", retryrmq.After(cause, time.Minute)), "retried", time.Minute, "", "", ""},
		"a delay alone":      {retryrmq.After(nil, time.Minute), "acked", 0, "", "", ""},
		"permanent":          {retryrmq.Permanent(cause), "parked", 0, "fatal", "the bank is closed", "Error"},
		"permanent, joined":  {errors.Join(errors.New("x"), retryrmq.Permanent(cause)), "parked", 0, "fatal", "x\nthe bank is closed", "Error"},
		"permanent, of type": {retryrmq.Permanent(brokenPipe{cause}), "parked", 0, "fatal", "the bank is closed", "brokenPipe"},
		"parked":             {retryrmq.Park("no such customer"), "parked", 0, "requested", "no such customer", ""},
		"put off":            {retryrmq.Defer(5 * time.Second), "deferred", 5 * time.Second, "", "", ""},
		"the outermost wins": {retryrmq.After(retryrmq.Permanent(cause), time.Hour), "retried", time.Hour, "", "", ""},
		"not valid UTF-8":    {retryrmq.Permanent(errors.New("a\xffb")), "parked", 0, "fatal", "a\uFFFDb", "Error"},
		"a text with NUL":    {retryrmq.Permanent(errors.New("a\x00b")), "parked", 0, "fatal", "a\x00b", "Error"},
		"an empty text":      {retryrmq.Permanent(errors.New("")), "parked", 0, "fatal", "", "Error"},
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			result := simulate(t, func(context.Context, *retryrmq.Message) error {
				if first {
					first = false
					return c.err
				}
				return nil
			})
			step := result.Attempts[0]
			if step.Became != c.became || step.Reason != c.reason || c.delay != 0 && step.Delay != c.delay {
				t.Errorf("%s after %v because of %q", step.Became, step.Delay, step.Reason)
			}
			if step.Parked == nil {
				return
			}
			headers := step.Parked.Headers()
			if text := headers["x-retry-error"]; c.text != "" && strings.ReplaceAll(c.text, "\n", " ") != strings.ReplaceAll(text.(string), "\n", " ") {
				t.Errorf("the error is %q", text)
			}
			if kind, _ := headers["x-retry-error-type"].(string); kind != c.kind {
				t.Errorf("the type is %q", kind)
			}
		})
	}
	if retryrmq.Permanent(nil) != nil {
		t.Error("Permanent(nil) is an error")
	}
	if retryrmq.After(nil, time.Minute) != nil {
		t.Error("After(nil, d) is an error")
	}
	if !errors.Is(retryrmq.After(cause, time.Second), cause) {
		t.Error("After hides its error")
	}
}

func TestReasonsAndEndsHaveNames(t *testing.T) {
	old := retryrmq.Retry(retryrmq.Fixed(time.Minute).MaxAge(time.Second))
	for want, step := range map[[2]string]retryrmq.Step{
		{retryrmq.BecameParked, retryrmq.ReasonFatal}:     simulate(t, failing(retryrmq.Permanent(errors.New("no")))).Attempts[0],
		{retryrmq.BecameParked, retryrmq.ReasonRequested}: simulate(t, failing(retryrmq.Park("no"))).Attempts[0],
		{retryrmq.BecameParked, retryrmq.ReasonTooOld}:    simulate(t, failing(errors.New("no")), old).Attempts[0],
		{retryrmq.BecameParked, retryrmq.ReasonExhausted}: simulate(t, failing(errors.New("no"))).Attempts[5],
		{retryrmq.BecameDropped, retryrmq.ReasonFatal}:    simulate(t, failing(retryrmq.Permanent(errors.New("no"))), retryrmq.NoParking()).Attempts[0],
		{retryrmq.BecameRetried, ""}:                      simulate(t, failing(errors.New("no"))).Attempts[0],
		{retryrmq.BecameAcked, ""}:                        simulate(t, failing(nil)).Attempts[0],
	} {
		if step.Became != want[0] || step.Reason != want[1] {
			t.Errorf("%s because of %q, and not %q", step.Became, step.Reason, want)
		}
	}
}

type notFound struct{}

func (notFound) Error() string     { return "gone" }
func (notFound) ErrorType() string { return "NotFound" }

func TestRulesSeeWhatAnErrorWraps(t *testing.T) {
	rules := retryrmq.Rules(
		retryrmq.Rule{Error: "NotFound", Retry: retryrmq.Fixed(7 * time.Second)},
		retryrmq.Rule{Error: "retryrmqtest_test.brokenPipe", Retry: retryrmq.Fixed(8 * time.Second)},
		retryrmq.Rule{Error: "TimeoutError", Retry: retryrmq.Fixed(9 * time.Second)},
		retryrmq.Rule{Headers: map[string]string{"kind": "bill"}, Retry: retryrmq.Fixed(10 * time.Second)},
	)
	for want, err := range map[time.Duration]error{
		7 * time.Second: fmt.Errorf("a: %w", fmt.Errorf("b: %w", notFound{})),
		8 * time.Second: errors.Join(errors.New("x"), &brokenPipe{errors.New("y")}),
		9 * time.Second: context.DeadlineExceeded,
		1 * time.Second: errors.New("else"),
	} {
		if delay := simulate(t, failing(err), rules).Attempts[0].Delay; delay != want {
			t.Errorf("%v waits %v, not %v", err, delay, want)
		}
	}
}

func TestFatalErrorsAreParkedAtOnce(t *testing.T) {
	result := simulate(t, failing(fmt.Errorf("x: %w", notFound{})),
		retryrmq.Fatal(func(err error) bool { return errors.As(err, &notFound{}) }))
	if parked := result.Parked(); len(parked) != 1 || parked[0].Reason != "fatal" {
		t.Errorf("%+v", parked)
	}
}

func TestAPanicIsAFailedAttemptWithItsStack(t *testing.T) {
	result := simulate(t, func(context.Context, *retryrmq.Message) error { return explode() },
		retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)))
	headers := result.Parked()[0].Message.Headers()
	stack, _ := headers["x-retry-error-stack"].(string)
	if !strings.Contains(stack, "explode") || strings.Contains(stack, "bindings-go.call") {
		t.Errorf("the stack is %q", stack)
	}
	if headers["x-retry-error"] != "panic: boom" || headers["x-retry-error-type"] != "panic" {
		t.Errorf("%v", headers)
	}
}

func explode() error { panic("boom") }

type rude struct{}

func (*rude) Error() string { panic("no text") }

func TestAnErrorWhoseTextPanics(t *testing.T) {
	result := simulate(t, failing(&rude{}), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)))
	if text := result.Parked()[0].Message.Headers()["x-retry-error"].(string); !strings.Contains(text, "rude") {
		t.Errorf("got %q", text)
	}
}

// An error with every method that is asked for, each of which panics when it is a nil pointer, as those of net.OpError do.
type hollow struct{ text string }

func (h *hollow) Error() string     { return h.text }
func (h *hollow) Is(error) bool     { return h.text == "" }
func (h *hollow) As(any) bool       { return h.text == "never" }
func (h *hollow) Timeout() bool     { return h.text == "" }
func (h *hollow) ErrorType() string { return h.text }
func (h *hollow) Unwrap() error     { return errors.New(h.text) }

func TestANilPointerAsAnErrorIsAFailedAttempt(t *testing.T) {
	var op *net.OpError
	var none *hollow
	rules := retryrmq.Rules(retryrmq.Rule{Error: "*hollow", Retry: retryrmq.Fixed(7 * time.Second)})
	fatal := retryrmq.Fatal(func(err error) bool { return errors.Is(err, io.EOF) })
	for name, c := range map[string]struct {
		err    error
		became string
	}{
		"net.OpError":        {op, "retried"},
		"every method":       {none, "retried"},
		"wrapped":            {fmt.Errorf("order 7: %w", error(op)), "retried"},
		"joined":             {errors.Join(none, op), "retried"},
		"permanent":          {retryrmq.Permanent(none), "parked"},
		"after":              {retryrmq.After(op, time.Second), "retried"},
		"after every method": {retryrmq.After(none, time.Second), "retried"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, options := range [][]retryrmq.Option{{rules}, {rules, fatal, retryrmq.HandlerTimeout(time.Minute)}} {
				step := simulate(t, failing(c.err), options...).Attempts[0]
				if step.Became != c.became {
					t.Errorf("it is %s", step.Became)
				}
			}
		})
	}
	// What can be said is said.
	step := simulate(t, failing(none), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0))).Attempts[0]
	headers := step.Parked.Headers()
	if text := headers["x-retry-error"].(string); !strings.Contains(text, "retryrmqtest_test.hollow") || headers["x-retry-error-type"] != "hollow" {
		t.Errorf("%v", headers)
	}
}

func TestAFunctionOfFatalThatPanicsIsNotFatal(t *testing.T) {
	asked := false
	result := simulate(t, failing(errors.New("no")), retryrmq.Fatal(func(error) bool { panic("boom") }),
		retryrmq.Fatal(func(error) bool { asked = true; return false }))
	if result.Attempts[0].Became != "retried" || !asked {
		t.Errorf("%+v; asked: %t", result.Attempts[0], asked)
	}
}

func TestOneOfSeveralFunctionsOfFatalDecides(t *testing.T) {
	never := retryrmq.Fatal(func(error) bool { return false })
	always := retryrmq.Fatal(func(error) bool { return true })
	for _, options := range [][]retryrmq.Option{{always, never}, {never, always}} {
		if result := simulate(t, failing(errors.New("no")), options...); result.Attempts[0].Reason != "fatal" {
			t.Errorf("%+v", result.Attempts[0])
		}
	}
}

type named struct{ name string }

func (named) Error() string       { return "gone" }
func (n named) ErrorType() string { return n.name }

func TestTheNameOfATypeIsAnyText(t *testing.T) {
	once := retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0))
	for name, want := range map[string]string{"\xffa": "\uFFFDa", "": "named"} {
		result := simulate(t, failing(named{name}), once, retryrmq.Rules(retryrmq.Rule{Error: "none", Retry: retryrmq.Fixed(time.Hour)}))
		if kind := result.Parked()[0].Message.Headers()["x-retry-error-type"]; kind != want {
			t.Errorf("%q is %q", name, kind)
		}
	}
}

func TestTheStackOfAnErrorIsItsChain(t *testing.T) {
	result := simulate(t, failing(fmt.Errorf("order 7: %w", notFound{})), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)))
	stack := result.Parked()[0].Message.Headers()["x-retry-error-stack"]
	if want := "*fmt.wrapError: order 7: gone\nwraps retryrmqtest_test.notFound: gone"; stack != want {
		t.Errorf("got %q", stack)
	}
}

// Also what is parked at its first attempt, long before the policy would have it parked, is recorded in full.
func TestWhatIsParkedAtOnceHasItsStack(t *testing.T) {
	gone := retryrmq.Fatal(func(err error) bool { return errors.As(err, &notFound{}) })
	wrapped := fmt.Errorf("order 7: %w", notFound{})
	for name, c := range map[string]struct {
		handler retryrmq.Handler
		want    string
	}{
		"permanent": {failing(retryrmq.Permanent(wrapped)), "order 7: gone\nwraps retryrmqtest_test.notFound: gone"},
		"fatal":     {failing(wrapped), "order 7: gone\nwraps retryrmqtest_test.notFound: gone"},
		"a panic":   {func(context.Context, *retryrmq.Message) error { panic(wrapped) }, "simulate_test.go"},
		"parked":    {failing(fmt.Errorf("order 7: %w", retryrmq.Park("no such customer"))), "wraps *retryrmq.parking: no such customer"},
	} {
		step := simulate(t, c.handler, gone).Attempts[0]
		if step.Parked == nil {
			t.Fatalf("%s: %s", name, step.Became)
		}
		if stack, _ := step.Parked.Headers()["x-retry-error-stack"].(string); !strings.Contains(stack, c.want) {
			t.Errorf("%s: the stack is %q", name, stack)
		}
	}
}

func TestAHandlerTimeoutIsADeadline(t *testing.T) {
	result := simulate(t, func(ctx context.Context, _ *retryrmq.Message) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("there is no deadline")
		}
		<-ctx.Done()
		return ctx.Err()
	}, retryrmq.HandlerTimeout(time.Millisecond), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0)))
	headers := result.Parked()[0].Message.Headers()
	if headers["x-retry-error-type"] != "HandlerTimeout" || headers["x-retry-error"] != "the handler took longer than 1ms" {
		t.Errorf("%v", headers)
	}
}

// Equal failures have one text, and so one fingerprint, in every language.
func TestATimeoutIsWrittenToTheNanosecond(t *testing.T) {
	step := simulate(t, func(ctx context.Context, _ *retryrmq.Message) error {
		<-ctx.Done()
		return ctx.Err()
	}, retryrmq.HandlerTimeout(1500*time.Microsecond), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0))).Attempts[0]
	if text := step.Parked.Headers()["x-retry-error"]; text != "the handler took longer than 1.5ms" {
		t.Errorf("got %v", text)
	}
	for delay, want := range map[time.Duration]string{
		1500 * time.Microsecond: "1.5ms", 30*time.Second + 500*time.Microsecond: "30000.5ms", time.Second: "1s", time.Hour: "1h", 0: "0ms",
		-time.Second: "0ms",
	} {
		if text := retryrmq.Defer(delay).Error(); text != "deferred for "+want {
			t.Errorf("%v: got %q, want %s", delay, text, want)
		}
	}
}

func TestWhatAHandlerReturnsPastItsDeadlineDoesNotCount(t *testing.T) {
	for name, returns := range map[string]func() error{
		"nothing":   func() error { return nil },
		"permanent": func() error { return retryrmq.Permanent(errors.New("no")) },
		"a delay":   func() error { return retryrmq.After(errors.New("no"), time.Hour) },
		"a panic":   func() error { panic("no") },
	} {
		step := simulate(t, func(ctx context.Context, _ *retryrmq.Message) error {
			<-ctx.Done()
			return returns()
		}, retryrmq.HandlerTimeout(time.Millisecond), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(0))).Attempts[0]
		if step.Reason != retryrmq.ReasonExhausted || step.Parked.Headers()["x-retry-error-type"] != "HandlerTimeout" {
			t.Errorf("%s: %s because of %q", name, step.Became, step.Reason)
		}
	}
}

func TestEveryAMQPTypeGoesAndComes(t *testing.T) {
	headers := retryrmq.Table{
		"bool": true, "no": false, "int8": int8(-5), "uint8": uint8(200), "int16": int16(-3000), "uint16": uint16(60000),
		"int32": int32(-7), "uint32": uint32(1 << 31), "int64": int64(-1 << 62), "float32": float32(1.5), "float64": 2.5,
		"decimal": retryrmq.Decimal{Scale: 2, Value: 314}, "text": "grüß\x00e", "empty": "", "bytes": []byte{0, 255},
		"none": []byte{}, "time": time.Unix(1_700_000_000, 0).UTC(), "void": nil, "not UTF-8": "\xff\xfe",
		"array": []any{int64(1), "two", nil, []any{}, retryrmq.Table{}}, "table": retryrmq.Table{"deep": retryrmq.Table{"x": int64(1)}},
		"": "an empty name",
	}
	var got retryrmq.Table
	messages := []retryrmq.Publishing{{Headers: headers}}
	_, err := retryrmqtest.Simulate(t.Context(), "orders", func(_ context.Context, m *retryrmq.Message) error {
		got = m.Headers()
		if m.Body == nil && len(m.Body) != 0 {
			t.Error("the body is not empty")
		}
		return nil
	}, messages)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, headers) {
		t.Errorf("got %#v", got)
	}
}

func TestIntegersOfGoBecomeAMQPs(t *testing.T) {
	var got retryrmq.Table
	messages := []retryrmq.Publishing{{Headers: retryrmq.Table{"int": 7, "uint": uint(8), "uint64": uint64(9), "map": map[string]any{"a": 1}}}}
	_, err := retryrmqtest.Simulate(t.Context(), "orders", func(_ context.Context, m *retryrmq.Message) error {
		got = m.Headers()
		return nil
	}, messages)
	want := retryrmq.Table{"int": int64(7), "uint": int64(8), "uint64": int64(9), "map": retryrmq.Table{"a": int64(1)}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, %v", got, err)
	}
}

func TestPropertiesGoAndCome(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	p := retryrmq.Publishing{RoutingKey: "eu.orders", Exchange: "shop", Body: []byte("body"), MessageID: "7", ContentType: "text/plain",
		ContentEncoding: "utf-8", CorrelationID: "c", ReplyTo: "r", Expiration: time.Minute, Priority: 3, Timestamp: now, Type: "t",
		AppID: "a", UserID: "guest", Transient: true}
	var got retryrmq.Properties
	_, err := retryrmqtest.Simulate(t.Context(), "orders", func(_ context.Context, m *retryrmq.Message) error {
		got = m.Properties()
		if m.Exchange != "shop" || m.RoutingKey != "eu.orders" || m.MessageID != "7" || string(m.Body) != "body" {
			t.Errorf("%+v", m)
		}
		return nil
	}, []retryrmq.Publishing{p})
	want := retryrmq.Properties{ContentType: "text/plain", ContentEncoding: "utf-8", CorrelationID: "c", ReplyTo: "r", Expiration: "60000",
		MessageID: "7", Type: "t", UserID: "guest", AppID: "a", DeliveryMode: 1, Priority: 3, Timestamp: now}
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAnExpirationIsNotCutToNothing(t *testing.T) {
	for span, want := range map[time.Duration]string{time.Millisecond: "1", 1500 * time.Microsecond: "2", time.Second: "1000"} {
		var got string
		_, err := retryrmqtest.Simulate(t.Context(), "orders", func(_ context.Context, m *retryrmq.Message) error {
			got = m.Properties().Expiration
			return nil
		}, []retryrmq.Publishing{{Expiration: span}})
		if err != nil || got != want {
			t.Errorf("%v is %q, %v", span, got, err)
		}
	}
}

func TestASimulationThatWasNotMade(t *testing.T) {
	for _, none := range []*retryrmq.Simulation{nil, {}} {
		if _, more, err := none.Step(t.Context()); more || !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("Step: %t, %v", more, err)
		}
		if err := none.Publish(retryrmq.Publishing{}); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("Publish: %v", err)
		}
		if none.Elapsed() != 0 {
			t.Error("time has passed")
		}
		none.Close()
	}
}

func TestBadMessagesSayWhatIsWrong(t *testing.T) {
	deep := retryrmq.Table{}
	for inner, i := deep, 0; i < 40; i++ {
		next := retryrmq.Table{}
		inner["x"] = next
		inner = next
	}
	for word, p := range map[string]retryrmq.Publishing{
		"MessageID":  {MessageID: "\xff"},
		"RoutingKey": {RoutingKey: "\xff"},
		"ReplyTo":    {ReplyTo: strings.Repeat("x", 256)},
		"Delay":      {Delay: -1},
		"Expiration": {Expiration: -1},
		"Timestamp":  {Timestamp: time.Unix(-5, 0)},
		"Table":      {Headers: retryrmq.Table{"x": struct{}{}}},
		"64-bit":     {Headers: retryrmq.Table{"x": uint64(1 << 63)}},
		"nested":     {Headers: deep},
		"255 bytes":  {Headers: retryrmq.Table{strings.Repeat("x", 256): 1}},
		"UTF-8":      {Headers: retryrmq.Table{"\xff": 1}},
		"1970":       {Headers: retryrmq.Table{"x": time.Unix(-5, 0)}},
	} {
		_, err := retryrmqtest.Simulate(t.Context(), "orders", failing(nil), []retryrmq.Publishing{p})
		if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	for word, option := range map[string]retryrmq.Option{
		"Prefetch": retryrmq.Prefetch(0), "Concurrency": retryrmq.Concurrency(-1), "HandlerTimeout": retryrmq.HandlerTimeout(0),
		"DrainTimeout": retryrmq.DrainTimeout(-1), "Pause": retryrmq.Pause(0.5, -1, 0), "`Pause` cannot": retryrmq.Pause(1.5, 0, 0),
		"OnEvent": retryrmq.OnEvent(nil), "OnReady": retryrmq.OnReady(nil), "Events": retryrmq.Events(nil), "Fatal": retryrmq.Fatal(nil), "option": nil,
		"CrashLimit": retryrmq.CrashLimit(0), "DeferLimit": retryrmq.DeferLimit(1 << 40), "strategy": retryrmq.Strategy("magic"),
		"Strategy": retryrmq.Strategy(""), "`Fatal` needs `DLX`": retryrmq.Fatal(func(error) bool { return true }),
		"`NoParking` needs `DLX`": retryrmq.NoParking(), "`Retry` needs `DLX`": retryrmq.Retry(retryrmq.Fixed(time.Second)),
		"`Rules` needs `DLX`": retryrmq.Rules(retryrmq.Rule{Error: "x"}), "policy": retryrmq.Retry(retryrmq.List()), "Rules": retryrmq.Rules(retryrmq.Rule{Error: "\xff"}),
	} {
		_, err := retryrmqtest.Simulate(t.Context(), "orders", failing(nil), nil, option)
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	for _, queue := range []string{"", "a\nb", "\xff"} {
		if _, err := retryrmqtest.Simulate(t.Context(), queue, failing(nil), nil); !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("%q: %v", queue, err)
		}
	}
	if _, err := retryrmqtest.Simulate(t.Context(), "orders", nil, nil); !errors.Is(err, retryrmq.ErrInvalidOption) {
		t.Errorf("a nil handler: %v", err)
	}
}

func TestASimulationEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	over, calls := errors.New("over"), 0
	_, err := retryrmqtest.Simulate(ctx, "orders", func(context.Context, *retryrmq.Message) error {
		calls++
		cancel(over)
		return errors.New("no")
	}, []retryrmq.Publishing{{}, {}}, retryrmq.DLX())
	if calls != 1 || !errors.Is(err, context.Canceled) || !errors.Is(err, over) {
		t.Errorf("%d calls, %v", calls, err)
	}
	var none context.Context
	if _, err := retryrmqtest.Simulate(none, "orders", failing(nil), []retryrmq.Publishing{{}}); !errors.Is(err, retryrmq.ErrInvalidOption) {
		t.Errorf("got %v", err)
	}
}

func TestASimulationThatDoesNotEndIsStopped(t *testing.T) {
	_, err := retryrmqtest.Simulate(t.Context(), "orders", failing(retryrmq.Defer(time.Second)),
		[]retryrmq.Publishing{{}}, retryrmq.DLX(), retryrmq.DeferLimit(1_000_000))
	if err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutDLXAFailureIsRejected(t *testing.T) {
	result, err := retryrmqtest.Simulate(t.Context(), "orders", failing(errors.New("no")), []retryrmq.Publishing{{}})
	if err != nil || result.Ends[0].Became != "rejected" {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestLargeBodiesArriveWhole(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	_, err := retryrmqtest.Simulate(t.Context(), "orders", func(_ context.Context, m *retryrmq.Message) error {
		if !bytes.Equal(m.Body, body) {
			t.Error("the body is another")
		}
		return nil
	}, []retryrmq.Publishing{{Body: body}})
	if err != nil {
		t.Error(err)
	}
}
