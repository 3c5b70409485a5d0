package native

import "testing"

// Whoever listened may close its channel after RemoveListener.
func TestNothingIsToldAfterRemoveListener(t *testing.T) {
	told := false
	number := AddListener(func([]byte) {
		told = true
		if dispatcher.mu.TryLock() {
			dispatcher.mu.Unlock()
			t.Error("it could be removed while it is told")
		}
	})
	dispatcher.deliver(number, nil)
	RemoveListener(number)
	if !told {
		t.Error("it was not told")
	}
	told = false
	if dispatcher.deliver(number, nil); told {
		t.Error("it was told after RemoveListener")
	}
}
