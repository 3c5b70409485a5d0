package retryrmq

// Stats are the numbers of a queue since its connection was made.
type Stats struct {
	// Delivered: messages delivered to the consumer.
	Delivered uint64
	// Acked: messages handled and acknowledged.
	Acked uint64
	// Failed: attempts that failed.
	Failed uint64
	// Retried: messages sent to wait for another attempt.
	Retried uint64
	// Deferred: messages deferred by their handler.
	Deferred uint64
	// Parked: messages parked.
	Parked uint64
	// HandedOver: failed messages handed over to the service, whose policy decides.
	HandedOver uint64
	// Rejected: messages rejected because the consumer has no retries.
	Rejected uint64
	// Detoured: messages that were with a consumer when it went away, sent on a counted detour.
	Detoured uint64
	// AlreadyHandled: redeliveries of handled messages, acknowledged without running them again.
	AlreadyHandled uint64
	// Requeued: messages given back to their queue.
	Requeued uint64
	// Stale: settlements of messages that were already settled or belong to a lost connection.
	Stale uint64
	// PublishFailures: copies that could not be stored at once.
	PublishFailures uint64
	// Reconnects: times the consumer came back after a loss.
	Reconnects uint64
	// Pauses: times the consumer paused because too many attempts failed.
	Pauses uint64
	// Outstanding: messages delivered and not settled yet.
	Outstanding uint64
}

func newStats(numbers map[string]uint64) Stats {
	return Stats{
		Delivered: numbers["delivered"], Acked: numbers["acked"], Failed: numbers["failed"], Retried: numbers["retried"],
		Deferred: numbers["deferred"], Parked: numbers["parked"], HandedOver: numbers["handed_over"], Rejected: numbers["rejected"],
		Detoured: numbers["detoured"], AlreadyHandled: numbers["already_handled"], Requeued: numbers["requeued"],
		Stale: numbers["stale"], PublishFailures: numbers["publish_failures"], Reconnects: numbers["reconnects"],
		Pauses: numbers["pauses"], Outstanding: numbers["outstanding"],
	}
}
