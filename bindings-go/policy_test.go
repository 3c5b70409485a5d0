package retryrmq_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go"
)

func TestPoliciesHaveOneTextInAllLanguages(t *testing.T) {
	for want, policy := range map[string]retryrmq.Policy{
		"fixed(5s, retries=3)":                                     retryrmq.Fixed(5 * time.Second).Retries(3),
		"linear(1s, step=1s, max=5m, retries=5)":                   retryrmq.Linear(time.Second, 0),
		"linear(1s, step=2s, max=1m, retries=5)":                   retryrmq.Linear(time.Second, 2*time.Second).Max(time.Minute),
		"exponential(1s, factor=4, max=5m, retries=5)":             {},
		"exponential(1s, factor=4, max=1m, retries=3)":             retryrmq.Policy{}.Retries(3).Max(time.Minute),
		"fixed(2ms, retries=3, max_age=1h)":                        retryrmq.Fixed(1500 * time.Microsecond).Retries(3).MaxAge(time.Hour),
		"fixed(1s, retries=3, max_age=1h, age_from=published)":     retryrmq.Fixed(time.Second).Retries(3).MaxAge(time.Hour).AgeFromPublication(),
		"exponential(1s, factor=2, max=5m, retries=8, jitter=0.2)": retryrmq.Exponential(time.Second, 5*time.Minute).Retries(8).Jitter(0.2).Factor(2),
	} {
		if got := policy.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		read, err := retryrmq.ParsePolicy(want)
		if err != nil || read.String() != want {
			t.Errorf("%q is read as %q, %v", want, read, err)
		}
	}
}

func TestAPolicyTellsItsDelays(t *testing.T) {
	want := []time.Duration{time.Second, 10 * time.Second, time.Minute}
	if got := retryrmq.List(want...).Delays(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := retryrmq.Fixed(1500 * time.Microsecond).Retries(1).Delays(); !reflect.DeepEqual(got, []time.Duration{2 * time.Millisecond}) {
		t.Errorf("got %v", got)
	}
	if got := retryrmq.Exponential(time.Second, 5*time.Minute).Delays(); got[4] != 256*time.Second {
		t.Errorf("got %v", got)
	}
}

func TestAPolicyIsNotChangedByItsMethods(t *testing.T) {
	base := retryrmq.Fixed(time.Second)
	one, two := base.Retries(1), base.Retries(2)
	if one.String() == two.String() || strings.Contains(base.String(), "retries=2") {
		t.Errorf("got %v, %v and %v", base, one, two)
	}
}

func TestAPolicyThatCannotWorkSaysWhy(t *testing.T) {
	for _, policy := range []retryrmq.Policy{
		retryrmq.List(), retryrmq.Fixed(-time.Second), retryrmq.Fixed(time.Second).Factor(2),
		retryrmq.Fixed(time.Second).Retries(-1), retryrmq.Fixed(time.Second).Jitter(0.95),
		retryrmq.Exponential(time.Minute, time.Second), retryrmq.Linear(time.Minute, time.Second).Max(time.Second),
	} {
		err := policy.Check()
		if err == nil || !errors.Is(err, retryrmq.ErrInvalidPolicy) && !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("%v: %v", policy, err)
		}
	}
	for _, text := range []string{"", "fixed", "fixed(5)", "hourly(1s)", "fixed(5s, retries=many)", "fixed(\x00)", "\xff"} {
		_, err := retryrmq.ParsePolicy(text)
		var ours *retryrmq.Error
		if !errors.As(err, &ours) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWhatIsSaidAgainReplacesWhatWasParsed(t *testing.T) {
	parsed, err := retryrmq.ParsePolicy(" exponential(1s,factor=2, max=1m, retries =5)")
	if err != nil {
		t.Fatal(err)
	}
	want := "exponential(1s, factor=2, max=2m, retries=3)"
	if got := parsed.Retries(4).Retries(3).Max(2 * time.Minute); got.String() != want || got.Check() != nil {
		t.Errorf("got %q, %v", got, got.Check())
	}
}

func TestARuleShowsItsText(t *testing.T) {
	text := "routing_key=eu.#, header.a=1, header.b=2, error=*Timeout => fixed(5s, retries=3)"
	built := retryrmq.Rule{RoutingKey: "eu.#", Headers: map[string]string{"b": "2", "a": "1"}, Error: "*Timeout",
		Retry: retryrmq.Fixed(5 * time.Second).Retries(3)}
	if built.String() != text {
		t.Errorf("got %q", built)
	}
	parsed, err := retryrmq.ParseRule(text)
	if err != nil || parsed.String() != text {
		t.Errorf("got %q, %v", parsed, err)
	}
	parsed.Error = "*Refused"
	_, err = retryrmq.NewSimulation("orders", func(context.Context, *retryrmq.Message) error { return nil }, retryrmq.DLX(), retryrmq.Rules(parsed))
	if !errors.Is(err, retryrmq.ErrInvalidOption) || !strings.Contains(err.Error(), "header.a") {
		t.Errorf("got %v", err)
	}
}

func TestRulesAreReadAndRefused(t *testing.T) {
	if _, err := retryrmq.ParseRule("routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)"); err != nil {
		t.Error(err)
	}
	if _, err := retryrmq.ParseRule("when=ever"); !errors.Is(err, retryrmq.ErrInvalidPolicy) {
		t.Errorf("got %v", err)
	}
}
