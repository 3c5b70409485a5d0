package retryrmqtest

import "time"

// SetConsumerTimeout sets how long Deliver waits for a consumer. Returns a function that sets it back.
func SetConsumerTimeout(timeout time.Duration) func() {
	before := consumerTimeout
	consumerTimeout = timeout
	return func() { consumerTimeout = before }
}
