package retryrmq

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What every language restates of the core is what bindings-common/table.json says; a Rust test holds that to the core.
type coreTable struct {
	Options       map[string]string
	Events        map[string][]string
	Codes         []string
	EventsWaiting int `json:"events_waiting"`
}

func readCoreTable(t *testing.T) coreTable {
	t.Helper()
	text, err := os.ReadFile("../bindings-common/table.json")
	if err != nil {
		t.Fatal(err)
	}
	var read coreTable
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// What stands in a group of a pattern in our source, sorted.
func inSource(t *testing.T, file, pattern string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return found
}

func TestEventsAndCodesAreThoseOfTheTable(t *testing.T) {
	table := readCoreTable(t)
	var names []string
	for name := range table.Events {
		names = append(names, name)
	}
	slices.Sort(names)
	if ours := inSource(t, "events.go", `EventName = "(\w+)"`); !slices.Equal(ours, names) {
		t.Errorf("the events are %v, not %v", ours, names)
	}
	if maxEvents != table.EventsWaiting {
		t.Errorf("%d events wait for a listener, not %d", maxEvents, table.EventsWaiting)
	}
	codes := slices.DeleteFunc(table.Codes, func(code string) bool { return code == "forked" }) // nothing forks in Go
	codes = append(codes, "error")                                                              // a fault of ours, not the core's
	slices.Sort(codes)
	if ours := inSource(t, "errors.go", `errorKind\("(\w+)"`); !slices.Equal(ours, codes) {
		t.Errorf("the codes are %v, not %v", ours, codes)
	}
}

func TestOptionsAreThoseOfTheTable(t *testing.T) {
	of := map[string]string{"queue": "", "dlx": "DLX", "park": "NoParking", "declare": "NoDeclare"}
	var names []string
	for name := range readCoreTable(t).Options {
		option, ok := of[name]
		if !ok {
			for part := range strings.SplitSeq(name, "_") {
				option += strings.ToUpper(part[:1]) + part[1:]
			}
		}
		if option != "" {
			names = append(names, option)
		}
	}
	slices.Sort(names)
	ours := append(inSource(t, "options.go", `(?m)^func ([A-Z]\w*)\(.*\) Option \{`), inSource(t, "work_queue.go", `(?m)^func ([A-Z]\w*)[\[(].*\) Option \{`)...)
	ours = slices.DeleteFunc(ours, func(name string) bool { return name == "Events" || name == "OnReady" || name == "NoDLX" }) // Go's own
	slices.Sort(ours)
	if !slices.Equal(ours, names) {
		t.Errorf("the options are %v, not %v", ours, names)
	}
}
