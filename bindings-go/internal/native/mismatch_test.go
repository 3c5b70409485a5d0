package native

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A library of another version must be noticed at the start, and not by what it does.
func TestAnotherLibraryIsRefused(t *testing.T) {
	onlyInTestAll(t)
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go to build with")
	}
	right, err := os.ReadFile("checksums.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, wrong := range map[string]string{
		"contract": regexp.MustCompile(`CONTRACT\(\d+\)`).ReplaceAllString(string(right), "CONTRACT(1)"),
		"function": regexp.MustCompile(`(func_version), \d+\)`).ReplaceAllString(string(right), "$1, 65536)"),
	} {
		if wrong == string(right) {
			t.Fatalf("checksums.h does not say %s any more", name)
		}
		build := exec.Command("go", "test", "-run", "none", "-overlay", overlaid(t, "checksums.h", wrong), ".")
		said, err := build.CombinedOutput()
		if err == nil || !strings.Contains(string(said), "is not the one this package was made for") {
			t.Errorf("with another %s: %v, %s", name, err, said)
		}
	}
}

// Go compiles its own packages once more for what such a test builds: minutes.
func onlyInTestAll(t *testing.T) {
	t.Helper()
	if os.Getenv("RETRYRMQ_TEST_MATRIX") == "assigned" {
		t.Skip("only `make test-all` runs this")
	}
}

// An overlay with another text of a file here, beside what the overlay of this test has, if there is one.
func overlaid(t *testing.T, file, text string) string {
	t.Helper()
	var overlay struct{ Replace map[string]string }
	flags, err := exec.Command("go", "env", "GOFLAGS").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range strings.Fields(string(flags)) {
		if path, ok := strings.CutPrefix(flag, "-overlay="); ok {
			if mine, err := os.ReadFile(path); err != nil || json.Unmarshal(mine, &overlay) != nil {
				t.Fatalf("%s cannot be read: %v", path, err)
			}
		}
	}
	if overlay.Replace == nil {
		overlay.Replace = map[string]string{}
	}
	original, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	replaced, path := filepath.Join(t.TempDir(), file), filepath.Join(t.TempDir(), "overlay.json")
	overlay.Replace[original] = replaced
	written, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{replaced: []byte(text), path: written} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}
