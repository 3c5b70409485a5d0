package retryrmq_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/retryrmqtest"
)

type chair struct {
	Item  string    `json:"item"`
	Legs  int8      `json:"legs"`
	Price int       `json:"price,string"`
	Made  time.Time `json:"made"`
	Parts []part    `json:"parts"`
}

type part struct {
	Count int `json:"count"`
}

func (c chair) Validate() error {
	switch {
	case c.Item == "":
		return errors.New("item: missing")
	case c.Legs > 8:
		return outOfStock{}
	case c.Legs == 0:
		return retryrmq.Park("ask the designer")
	}
	return nil
}

// One whose pointer validates.
type table struct{ Item string }

func (t *table) Validate() error { return chair{Item: t.Item, Legs: 1}.Validate() }

// What becomes of a message with this body.
func typed[T any](t *testing.T, body string, options ...retryrmq.HandleOption) (got []T, result *retryrmqtest.Result) {
	t.Helper()
	handler := retryrmq.Handle(func(_ context.Context, body T, m *retryrmq.Message) error {
		if m.Queue != "orders" {
			t.Errorf("%v", m)
		}
		got = append(got, body)
		return nil
	}, options...)
	result, err := retryrmqtest.Simulate(t.Context(), "orders", handler, []retryrmq.Publishing{{Body: []byte(body)}},
		retryrmq.DLX(), retryrmq.Retry(retryrmq.Fixed(time.Second).Retries(1)))
	if err != nil {
		t.Fatal(err)
	}
	return got, result
}

func TestAHandlerGetsItsType(t *testing.T) {
	got, _ := typed[chair](t, `{"item": "chair", "legs": 4, "price": "7", "parts": [{"count": 1}], "colour": "red"}`)
	if len(got) != 1 || got[0].Item != "chair" || got[0].Legs != 4 || got[0].Price != 7 || got[0].Parts[0].Count != 1 {
		t.Errorf("%+v", got)
	}
	if got, _ := typed[*table](t, `{"item": "table"}`); len(got) != 1 || got[0].Item != "table" {
		t.Errorf("%+v", got)
	}
	if got, _ := typed[[]int](t, `[1, 2]`); len(got) != 1 || len(got[0]) != 2 {
		t.Errorf("%+v", got)
	}
	if got, _ := typed[map[string]any](t, ` null `); len(got) != 1 || got[0] != nil {
		t.Errorf("%+v", got)
	}
	if got, _ := typed[json.RawMessage](t, `null`); len(got) != 1 || string(got[0]) != "null" {
		t.Errorf("%+v", got)
	}
	if got, _ := typed[any](t, `null`); len(got) != 1 || got[0] != nil {
		t.Errorf("%+v", got)
	}
}

// The record says which field is wrong, and does not quote the body.
func TestAnInvalidBodyIsParkedAtOnce(t *testing.T) {
	const secret = "4711"
	chairs := func(body string) *retryrmqtest.Result { _, r := typed[chair](t, body); return r }
	for _, c := range []struct {
		result      *retryrmqtest.Result
		kind, error string
	}{
		{chairs(`4711 {`), "SyntaxError", "invalid character '{' after top-level value at byte 6"},
		{chairs(``), "SyntaxError", "unexpected end of JSON input"},
		{chairs(`{"item": 4711}`), "UnmarshalTypeError", "json: cannot unmarshal number into Go struct field chair.item of type string"},
		{chairs(`{"legs": 4711}`), "UnmarshalTypeError", "json: cannot unmarshal number into Go struct field chair.legs of type int8"},
		{chairs(`{"parts": [{"count": "4711"}]}`), "UnmarshalTypeError", "parts.count of type int"},
		{chairs(`{"price": "x4711"}`), "ValidationError", "json: invalid use of ,string struct tag into int"},
		{chairs(`{"price": "\"4711"}`), "ValidationError", "json: invalid use of ,string struct tag into int"},
		{chairs(`{"made": "4711"}`), "ParseError", `parsing time "..." as "2006-01-02T15:04:05Z07:00": cannot parse "..." as "-"`},
		{chairs(`{"made": "2026-11-28T21:00:00Z4711"}`), "ParseError", `parsing time "...": extra text`},
		{chairs(`{"made": "2026-02-30T21:00:00Z"}`), "ParseError", `parsing time "...": day out of range`},
		{chairs("{\"item\": \"ch\xe4ir 4711\", \"legs\": 4}"), "ValidationError", "the body is not UTF-8"},
		{chairs(`null`), "ValidationError", "the body is null"},
		{chairs(`{"legs": 4}`), "ValidationError", "item: missing"},
		{chairs(`{"item": "4711", "legs": 9}`), "outOfStock", "out of stock"},
		{only(typed[table](t, `{"item": ""}`)), "ValidationError", "item: missing"},
		{only(typed[*table](t, `{}`)), "ValidationError", "item: missing"},
		{only(typed[*table](t, `null`)), "ValidationError", "the body is null"},
	} {
		parked := c.result.Parked()
		if len(parked) != 1 || len(c.result.Attempts) != 1 || parked[0].Reason != retryrmq.ReasonUndecodable {
			t.Errorf("%s: %+v", c.error, c.result.Ends)
			continue
		}
		record := parked[0].Message.Headers()
		// How the sentence begins depends on Go's version.
		if said, _ := record["x-retry-error"].(string); !strings.HasSuffix(said, c.error) || record["x-retry-error-type"] != c.kind {
			t.Errorf("%v: %q, not %v: %q", record["x-retry-error-type"], said, c.kind, c.error)
		}
		if strings.Contains(fmt.Sprint(record), secret) {
			t.Errorf("the record quotes the body: %v", record)
		}
		if outcome := retryrmq.OutcomeOf(c.result.Attempts[0].Err); outcome != retryrmq.OutcomeUndecodable {
			t.Errorf("the outcome is %q", outcome)
		}
	}
}

// A program that asks for bytes is wrong, and no reason to park its messages at once, or to read base64.
func TestATypedHandlerOfBytesFails(t *testing.T) {
	type blob []byte
	type raw struct{ Bytes []byte }
	for name, result := range map[string]*retryrmqtest.Result{
		"an object": only(typed[[]byte](t, `{"item": "chair"}`)), "base64": only(typed[[]byte](t, `"4711"`)), "another name": only(typed[blob](t, `"4711"`)),
	} {
		if end := result.Ends[0]; len(result.Attempts) != 2 || end.Reason != retryrmq.ReasonExhausted ||
			!errors.Is(result.Attempts[0].Err, retryrmq.ErrInvalidOption) || !strings.Contains(result.Attempts[0].Err.Error(), "json.RawMessage") {
			t.Errorf("%s: %+v", name, end)
		}
	}
	if got, _ := typed[net.IP](t, `"10.0.0.1"`); len(got) != 1 || got[0].String() != "10.0.0.1" {
		t.Errorf("%v", got)
	}
	if got, _ := typed[raw](t, `{"Bytes": "4711"}`); len(got) != 1 || len(got[0].Bytes) != 3 {
		t.Errorf("%v", got)
	}
}

func only[T any](_ []T, result *retryrmqtest.Result) *retryrmqtest.Result { return result }

func TestAnInvalidBodyMayBeRetried(t *testing.T) {
	got, result := typed[chair](t, `{"legs": "four"}`, retryrmq.RetryInvalidBody())
	if len(got) != 0 || len(result.Attempts) != 2 || result.Parked()[0].Reason != retryrmq.ReasonExhausted {
		t.Errorf("%+v, %+v", got, result.Ends)
	}
	if kind := result.Parked()[0].Message.Headers()["x-retry-error-type"]; kind != "UnmarshalTypeError" {
		t.Errorf("%v", kind)
	}
}

func TestAValidatorMayDecideItself(t *testing.T) {
	for _, options := range [][]retryrmq.HandleOption{nil, {retryrmq.RetryInvalidBody()}} {
		_, result := typed[chair](t, `{"item": "bean bag"}`, options...)
		if end := result.Ends[0]; end.Reason != retryrmq.ReasonRequested || end.Message.Headers()["x-retry-error"] != "ask the designer" {
			t.Errorf("%+v", end)
		}
	}
}

func TestAHandlerMaySayUndecodable(t *testing.T) {
	if retryrmq.Undecodable(nil) != nil {
		t.Error("nil is an error")
	}
	undecodable := func(context.Context, *retryrmq.Message) error {
		return fmt.Errorf("order 7: %w", retryrmq.Undecodable(outOfStock{}))
	}
	parked := simulate(t, undecodable, retryrmq.DLX()).Parked()
	if len(parked) != 1 || parked[0].Reason != retryrmq.ReasonUndecodable {
		t.Fatalf("%+v", parked)
	}
	record := parked[0].Message.Headers()
	if record["x-retry-error"] != "order 7: out of stock" || record["x-retry-error-type"] != "outOfStock" {
		t.Errorf("%v", record)
	}
	if result := simulate(t, undecodable); result.Ends[0].Became != retryrmq.BecameRejected {
		t.Errorf("without DLX: %+v", result.Ends)
	}
}

func TestATypedHandlerWithoutAFunctionIsRefused(t *testing.T) {
	var none func(context.Context, chair, *retryrmq.Message) error
	_, err := retryrmqtest.Simulate(t.Context(), "orders", retryrmq.Handle(none), nil)
	if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), "handler is nil") {
		t.Error(err)
	}
}

func TestAnInvalidBodyIsParkedOnTheBroker(t *testing.T) {
	everywhere(t, func(t *testing.T, s *fixture) {
		conn := s.dial()
		s.queue("orders", "quorum")
		s.publish(conn, "orders", `{"item": 7}`, `{"item": "table"}`)
		handle := retryrmq.Handle(func(_ context.Context, o table, _ *retryrmq.Message) error {
			if o.Item != "table" {
				t.Errorf("%+v", o)
			}
			return nil
		})
		c := s.consume(conn, "orders", handle, retryrmq.DLX())
		eventually(t, "both are settled", func() bool {
			stats := conn.Stats("orders")
			return stats.Acked == 1 && stats.Parked == 1
		})
		if err := c.end(); err != nil {
			t.Error(err)
		}
		for parked, err := range conn.Parked(t.Context(), "orders") {
			if err != nil {
				t.Fatal(err)
			}
			if parked.Reason != retryrmq.ReasonUndecodable || parked.ErrorType != "UnmarshalTypeError" || parked.Attempts != 1 {
				t.Errorf("%+v", parked)
			}
		}
	})
}
