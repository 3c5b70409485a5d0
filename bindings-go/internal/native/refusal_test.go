package native

import "testing"

// Like in every language: a bug of ours is not a refusal by the broker.
func TestAPanicOfTheNativeHalfHasTheCodeOfAFault(t *testing.T) {
	err := refusalOf(2, []byte("index out of bounds"))
	if refusal, ok := err.(*Refusal); !ok || refusal.Code != "error" || refusal.Detail != "index out of bounds" {
		t.Errorf("got %#v", err)
	}
}
