package retryrmq

// Stats are the counters of a queue since its connection was made. All consumers of the queue on that connection share them.
type Stats struct {
	// Delivered: messages delivered to the consumer.
	Delivered uint64
	// Acked: messages handled and acknowledged.
	Acked uint64
	// Failed: attempts that failed.
	Failed uint64
	// Retried: messages sent to wait for another attempt.
	Retried uint64
	// Deferred: messages that a handler deferred.
	Deferred uint64
	// Parked: messages parked.
	Parked uint64
	// HandedOver: failed messages handed over to the service, whose policy decides.
	HandedOver uint64
	// Rejected: failed messages rejected without requeue, because [DLX] is not set.
	Rejected uint64
	// Detoured: messages redelivered because their consumer never settled them, or too early with `native`; a copy waits, so that no crash is missed and no delay is skipped.
	Detoured uint64
	// AlreadyHandled: redeliveries of handled messages, acknowledged and not handled again.
	AlreadyHandled uint64
	// Requeued: messages requeued.
	Requeued uint64
	// Unreadable: messages moved to `<queue>.unreadable`, because RabbitMQ cannot deliver them over AMQP 0-9-1.
	Unreadable uint64
	// Stale: settlements without effect, because the message was already settled or belongs to a lost connection.
	Stale uint64
	// PublishFailures: copies that could not be stored at once.
	PublishFailures uint64
	// Reconnects: how often the consumer consumed again after a lost connection or channel.
	Reconnects uint64
	// Pauses: how often the consumer paused because too many attempts failed.
	Pauses uint64
	// Outstanding: messages delivered and not settled yet.
	Outstanding uint64
}

func newStats(numbers map[string]uint64) Stats {
	return Stats{
		Delivered: numbers["delivered"], Acked: numbers["acked"], Failed: numbers["failed"], Retried: numbers["retried"],
		Deferred: numbers["deferred"], Parked: numbers["parked"], HandedOver: numbers["handed_over"], Rejected: numbers["rejected"],
		Detoured: numbers["detoured"], AlreadyHandled: numbers["already_handled"], Requeued: numbers["requeued"],
		Unreadable: numbers["unreadable"], Stale: numbers["stale"], PublishFailures: numbers["publish_failures"], Reconnects: numbers["reconnects"],
		Pauses: numbers["pauses"], Outstanding: numbers["outstanding"],
	}
}
