package retryrmq

import (
	"encoding/binary"
	"testing"
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
