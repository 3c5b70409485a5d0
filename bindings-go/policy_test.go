package retryrmq_test

import (
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
		"linear(1s, step=2s, max=1m, retries=5)":                   retryrmq.Linear(time.Second, 2*time.Second).Max(time.Minute),
		"exponential(1s, factor=4, max=5m, retries=5)":             {},
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
		retryrmq.Fixed(time.Second).Retries(-1), retryrmq.Fixed(time.Second).Jitter(7),
	} {
		err := policy.Check()
		if err == nil || !errors.Is(err, retryrmq.ErrInvalidPolicy) && !errors.Is(err, retryrmq.ErrInvalidOption) {
			t.Errorf("%v: %v", policy, err)
		}
	}
	for _, text := range []string{"", "fixed", "fixed(5)", "hourly(1s)", "fixed(5s, retries=many)", "fixed(\x00)", "\xff"} {
		_, err := retryrmq.ParsePolicy(text)
		if text == "" {
			continue // the zero policy, which is the default
		}
		var ours *retryrmq.Error
		if !errors.As(err, &ours) {
			t.Errorf("%q: %v", text, err)
		}
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
