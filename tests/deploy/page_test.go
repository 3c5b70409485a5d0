package deploy

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The values on the page make a release that Kubernetes takes, and the table names values that there are.
func TestTheValuesOnThePageAreAccepted(t *testing.T) {
	page := read(t, "docs/howto/kubernetes.md")
	_, after, found := strings.Cut(page, "<!-- held by tests/deploy/page_test.go -->\n   ```yaml\n")
	block, _, ended := strings.Cut(after, "   ```\n")
	if !found || !ended {
		t.Fatal("the page has no values")
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	write(t, file, regexp.MustCompile(`(?m)^   `).ReplaceAllString(block, ""), 0o644)
	rendered := render(t, "--values", file)
	for _, document := range rendered {
		if err := valid(document); err != nil {
			t.Error(err)
		}
	}
	only(t, rendered, "PodDisruptionBudget")
	values := documents(t, read(t, chart+"/values.yaml"))[0]
	_, table, _ := strings.Cut(page, "| value | default | |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	named := 0
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		above := ""
		for _, word := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(cells[1], -1) {
			name := word[1]
			if strings.HasPrefix(name, ".") {
				name = above + name
			}
			above, _, _ = strings.Cut(name, ".")
			var path []any
			for _, step := range strings.Split(name, ".") {
				path = append(path, step)
			}
			if at(values, path...) == nil {
				t.Errorf("the page names the value %s, which there is not", name)
			}
			named++
		}
	}
	if named < 20 {
		t.Errorf("only %d values were found", named)
	}
}
