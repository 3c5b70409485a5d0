package native

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWithoutCgoOneErrorSaysWhatIsMissing(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go to build with")
	}
	for _, setting := range []string{"CGO_ENABLED=0", "GOOS=windows"} {
		build := exec.Command("go", "build", ".")
		build.Env = append(os.Environ(), "GOOS=", setting)
		said, err := build.CombinedOutput()
		if err == nil || strings.Count(string(said), ".go:") != 1 || !strings.Contains(string(said), "needs_cgo") {
			t.Errorf("with %s: %v, %s", setting, err, said)
		}
	}
}
