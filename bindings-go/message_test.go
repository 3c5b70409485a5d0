package retryrmq

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// A message as the native half writes it: the sizes of its parts, and the parts.
func laidOut(parts ...string) []byte {
	b := make([]byte, partsAt)
	binary.LittleEndian.PutUint64(b[8:], 7)
	binary.LittleEndian.PutUint32(b[24:], 3)
	for i, part := range parts {
		binary.LittleEndian.PutUint32(b[sizesAt+4*i:], uint32(len(part)))
		b = append(b, part...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func TestABatchThatIsCutShortIsRefused(t *testing.T) {
	one := laidOut("shop", "orders", "id", "", "", "\x05\x02id", "\x01aV", "body")
	batch := append(append([]byte{}, one...), one...)
	messages, err := readBatch(batch, "orders")
	if err != nil || len(messages) != 2 {
		t.Fatal(len(messages), err)
	}
	for _, m := range messages {
		if m.token != 7 || m.Attempt != 3 || m.Exchange != "shop" || m.MessageID != "id" || string(m.Body) != "body" ||
			m.Properties().MessageID != "id" || len(m.Headers()) != 1 {
			t.Errorf("%+v", m)
		}
	}
	if _, err := readMessage(batch, "orders"); err != errShortBatch {
		t.Error("two are not one:", err)
	}
	for end := 1; end < len(one); end++ {
		if _, err := readBatch(batch[:len(one)+end], "orders"); err != errShortBatch {
			t.Fatalf("%d bytes: %v", end, err)
		}
	}
	// Sizes that lead out of the message, or leave some of it over.
	for at := range sizesAt + 4*partCount {
		if at >= 4 && at < sizesAt {
			continue
		}
		for _, wrong := range []byte{0xff, 0x80, one[at] + 1, one[at] - 1} {
			bad := append([]byte{}, one...)
			bad[at] = wrong
			if messages, err := readBatch(bad, "orders"); err == nil && bad[at] != one[at] {
				t.Errorf("byte %d of %#x is %#x: %v", at, one[at], wrong, messages)
			}
		}
	}
}

func TestTheMessagesOfABatchThatCannotBeReadAreKnown(t *testing.T) {
	whole := laidOut("shop", "orders", "id", "", "", "", "", "body")
	bad := bytes.Clone(whole)
	bad[sizesAt]++
	cut := whole[:len(whole)-1]
	var said strings.Builder
	log := &asyncLogger{}
	log.chosen.Store(slog.New(slog.NewTextHandler(&said, nil)))
	w := &workers{queue: "orders", classifier: errorClassifier{log: log}}
	messages, tokens := w.read(slices.Concat(whole, bad, cut))
	var two native.Tokens
	two.Add(7)
	two.Add(7)
	if len(messages) != 0 || !bytes.Equal(tokens, two) {
		t.Error(messages, tokens)
	}
	var paused []time.Duration
	w.noMoreWanted = make(chan struct{})
	w.wait = func(limit time.Duration, done <-chan struct{}) bool {
		if done != w.noMoreWanted {
			t.Error("the pause does not end with the consumer")
		}
		paused = append(paused, limit)
		return true
	}
	w.subscription = &native.Subscription{} // gone
	w.afterTaking(tokens, nil)
	w.afterTaking(nil, &native.Error{Code: "error", Message: "the native half failed", Detail: "index out of bounds"})
	w.afterTaking(nil, nil)
	if !slices.Equal(paused, []time.Duration{faultPause, faultPause}) {
		t.Error(paused)
	}
	log.flush()
	for _, line := range []string{"a batch is cut short", `the native half failed" queue=orders detail="index out of bounds"`} {
		if !strings.Contains(said.String(), line) {
			t.Errorf("%q is not in the log: %s", line, said.String())
		}
	}
	if strings.Count(said.String(), "level=ERROR") != 2 {
		t.Error(said.String())
	}
}
