package native

import "testing"

// Like in every language: a bug of ours is not a refusal by the broker.
func TestAPanicOfTheNativeHalfHasTheCodeOfAFault(t *testing.T) {
	err := errorOf(2, []byte("index out of bounds"))
	if failure, ok := err.(*Error); !ok || failure.Code != "error" || failure.Detail != "index out of bounds" {
		t.Errorf("got %#v", err)
	}
}
