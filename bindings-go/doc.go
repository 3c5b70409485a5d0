// Package retryrmq is the way to retry messages on RabbitMQ: when a handler fails, the message leaves the head of its queue,
// waits in the broker, and returns at the tail of that queue only, counted, until it succeeds or is parked with a readable
// record of why. With [DLX] nothing is lost, whatever crashes.
//
//	conn, err := retryrmq.Dial(ctx, "amqp://localhost")
//	...
//	err = conn.Consume(ctx, "orders", func(ctx context.Context, m *retryrmq.Message) error {
//		return ship(ctx, m.Body) // nil acknowledges, an error retries
//	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Exponential(time.Second, 5*time.Minute)))
//
// A handler may be called more than once for the same message (at least once); [Message.MessageID] and [Message.Attempt] help to
// notice.
//
// The work is done by a library in Rust, which Python, Node and Rust services share; it is linked in through cgo.
package retryrmq
