package native

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestWithoutCgoOneErrorSaysWhatIsMissing(t *testing.T) {
	onlyInTestAll(t)
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

// What the compiler sees where there is no library: with cgo for such a platform it would come to the sentence, too.
func TestWithoutALibraryTheSameErrorSaysSo(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go to ask")
	}
	for platform, missing := range map[string]bool{
		"linux/386": true, "linux/arm": true, "linux/riscv64": true, "freebsd/amd64": true, "windows/amd64": true,
		"linux/amd64": false, "linux/arm64": false, "darwin/amd64": false, "darwin/arm64": false,
	} {
		system, machine, _ := strings.Cut(platform, "/")
		for _, tags := range []string{"", "dynamic"} {
			list := exec.Command("go", "list", "-tags", tags, "-f", "{{.GoFiles}}", ".")
			list.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS="+system, "GOARCH="+machine)
			files, err := list.CombinedOutput()
			want := missing && (tags == "" || system == "windows")
			if err != nil || strings.Contains(string(files), "unsupported.go") != want {
				t.Errorf("%s with tags %q: %v, %s", platform, tags, err, files)
			}
		}
	}
}

func TestBeforeTheLibraryIsBuiltTheCompilerSaysHow(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go to build with")
	}
	link, err := os.ReadFile("link_static.go")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := strings.ReplaceAll(string(link), "${SRCDIR}/../../lib/", t.TempDir()+string(filepath.Separator))
	if elsewhere == string(link) {
		t.Fatal("link_static.go does not name the library's place any more")
	}
	build := exec.Command("go", "build", "-overlay", overlaid(t, "link_static.go", elsewhere), ".")
	said, err := build.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "run `make go-lib`") {
		t.Errorf("%v, %s", err, said)
	}
}

func TestTheOtherCLibraryIsNamedByTheCompiler(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go to build with")
	}
	libc, err := exec.Command("sh", "-c", "printf '#include <stdlib.h>\n__GLIBC__' | ${CC:-cc} -E -P -").CombinedOutput()
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("there is no C compiler for Linux")
	}
	tags, sentence := "musl", "build without `-tags musl`"
	if strings.HasSuffix(strings.TrimSpace(string(libc)), "__GLIBC__") {
		tags, sentence = "", "build with `-tags musl`"
	}
	build := exec.Command("go", "build", "-tags", tags, ".")
	build.Env = append(os.Environ(), "GOFLAGS=")
	said, err := build.CombinedOutput()
	if err == nil || !strings.Contains(string(said), sentence) {
		t.Errorf("%v, %s", err, said)
	}
}
