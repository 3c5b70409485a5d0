package retryrmq_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/retryrmq/retryrmq/bindings-go"
	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// No test may leave a goroutine or a native object behind.
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
	// What was given up is freed by the native half's own threads, a moment later.
	for deadline := time.Now().Add(time.Minute); native.LiveObjects() != 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "%d native objects are left\n", native.LiveObjects())
			code = 1
			break
		}
	}
	os.Exit(code)
}
