// Package deploy tests what runs retryrmq elsewhere: the Helm chart, the examples for Kubernetes and KEDA, and the Compose project.
//
// With -short nothing is needed but Go. Otherwise the programs of retryrmq are run with what these files say, on a real broker.
package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

const chart = "deploy/helm/retryrmq-serve"

// root is the checkout.
var root = func() string {
	folder, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return folder
}()

func in(path string) string { return filepath.Join(root, path) }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(in(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// helm is the real one, of the version in go.mod; Go keeps it in its cache.
var helm = sync.OnceValues(func() (string, error) {
	path, err := exec.Command("go", "tool", "-n", "helm").Output()
	return strings.TrimSpace(string(path)), err
})

// runHelm gives what Helm prints, and what it complains about.
func runHelm(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	path, err := helm()
	if err != nil {
		t.Fatalf("helm could not be built: %v", err)
	}
	command := exec.Command(path, arguments...)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s%s", err, out.String(), complaint.String())
	}
	return out.String(), nil
}

// object is a document of YAML.
type object map[string]any

// at walks into an object by names and positions, and gives nil where there is nothing.
func at(value any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			switch fields := value.(type) {
			case object:
				value = fields[step]
			case map[string]any:
				value = fields[step]
			default:
				return nil
			}
		case int:
			items, _ := value.([]any)
			if step >= len(items) {
				return nil
			}
			value = items[step]
		}
	}
	return value
}

func text(value any, path ...any) string {
	found := at(value, path...)
	if found == nil {
		return ""
	}
	return fmt.Sprint(found)
}

func list(value any, path ...any) []any {
	items, _ := at(value, path...).([]any)
	return items
}

// documents reads strictly: a key that is there twice is an error.
func documents(t *testing.T, source string) []object {
	t.Helper()
	var found []object
	for _, part := range strings.Split("\n"+source, "\n---") {
		var document object
		if err := yaml.UnmarshalStrict([]byte(part), &document); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		if document != nil {
			found = append(found, document)
		}
	}
	return found
}

func ofKind(documents []object, kind string) []object {
	var found []object
	for _, document := range documents {
		if document["kind"] == kind {
			found = append(found, document)
		}
	}
	return found
}

func only(t *testing.T, documents []object, kind string) object {
	t.Helper()
	found := ofKind(documents, kind)
	if len(found) != 1 {
		t.Fatalf("%d of the kind %s", len(found), kind)
	}
	return found[0]
}

// render gives what the chart makes of some values, which are files or settings.
func render(t *testing.T, arguments ...string) []object {
	t.Helper()
	out, err := runHelm(t, append([]string{"template", "shop", in(chart), "--namespace", "shop"}, arguments...)...)
	if err != nil {
		t.Fatal(err)
	}
	return documents(t, out)
}

// valuesFiles are those of the chart's folder ci, each of which is a whole release.
func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(in(chart + "/ci/*-values.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	return files
}
