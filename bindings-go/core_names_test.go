package retryrmq

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The names that a part of the core gives, by what it calls them itself: between two texts of a file, all that pattern finds.
func coreNames(t *testing.T, file, from, to, pattern string) map[string]string {
	t.Helper()
	source, err := os.ReadFile("../core/src/" + file)
	if err != nil {
		t.Fatal(err)
	}
	_, part, begun := strings.Cut(string(source), from)
	part, _, ended := strings.Cut(part, to)
	names := map[string]string{}
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(part, -1) {
		names[found[1]] = found[2]
	}
	if !begun || !ended || len(names) == 0 {
		t.Fatalf("%s does not name what it did any more", file)
	}
	return names
}

func TestEventsAreNamedAsInTheCore(t *testing.T) {
	ours := map[string]string{}
	for name, value := range map[string]EventName{
		"Retried": EventRetried, "Deferred": EventDeferred, "Parked": EventParked, "HandedOver": EventHandedOver, "Rejected": EventRejected,
		"Detoured": EventDetoured, "AlreadyHandled": EventAlreadyHandled, "Replayed": EventReplayed,
		"PublishFailed": EventPublishFailed, "Requeued": EventRequeued, "Disconnected": EventDisconnected,
		"LoginRefused": EventLoginRefused, "UnreadableMoved": EventUnreadableMoved, "ConsumingStopped": EventConsumingStopped,
		"Reconnected": EventReconnected, "Paused": EventPaused, "Resumed": EventResumed,
	} {
		ours[name] = string(value)
	}
	core := coreNames(t, "telemetry/events.rs", "fn name(&self)", "pub fn ", `Self::(\w+) \{ \.\. \} => "([^"]+)"`)
	if !reflect.DeepEqual(ours, core) {
		t.Errorf("the core has %v", core)
	}
}

func TestReasonsAreNamedAsInTheCore(t *testing.T) {
	ours := map[string]string{
		"Exhausted": ReasonExhausted, "Fatal": ReasonFatal, "Requested": ReasonRequested, "DeliveryLimit": ReasonDeliveryLimit,
		"Undecodable": ReasonUndecodable, "Expired": ReasonExpired, "TooOld": ReasonTooOld, "Rejected": ReasonRejected,
		"Overflow": ReasonOverflow,
	}
	core := coreNames(t, "retry/outcome.rs", "fn as_str(self)", "pub fn ", `Self::(\w+) => "([^"]+)"`)
	if !reflect.DeepEqual(ours, core) {
		t.Errorf("the core has %v", core)
	}
}

func TestEveryNumberHasItsField(t *testing.T) {
	core := coreNames(t, "telemetry/metrics.rs", "counters! {\n", "\n}", `(\w+) = "(\w+)":`)
	core["outstanding"] = ""
	numbers, values := map[string]uint64{}, map[string]uint64{}
	for name := range core {
		var field strings.Builder
		for word := range strings.SplitSeq(name, "_") {
			field.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
		numbers[name] = uint64(len(numbers) + 1)
		values[field.String()] = numbers[name]
	}
	stats := reflect.ValueOf(newStats(numbers))
	if stats.NumField() != len(values) {
		t.Errorf("%d numbers, %d fields", len(values), stats.NumField())
	}
	for name, value := range values {
		if field := stats.FieldByName(name); !field.IsValid() || field.Uint() != value {
			t.Errorf("%s is not what the core gives by that name", name)
		}
	}
}
