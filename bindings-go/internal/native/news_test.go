package native

import "testing"

// Whoever listened may close its channel after Unlisten.
func TestNothingIsToldAfterUnlisten(t *testing.T) {
	told := false
	number := Listen(func([]byte) {
		told = true
		if room.mu.TryLock() {
			room.mu.Unlock()
			t.Error("it could unlisten while it is told")
		}
	})
	room.tell(number, nil)
	Unlisten(number)
	if !told {
		t.Error("it was not told")
	}
	told = false
	if room.tell(number, nil); told {
		t.Error("it was told after Unlisten")
	}
}
