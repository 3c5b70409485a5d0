// Package retryrmq retries messages on RabbitMQ. When a handler fails, its message waits in the broker and comes back at the tail of its
// queue. Each retry is counted. In the end the message is handled, or parked with a record of why. With [DLX] no message is lost when a
// consumer or the connection fails.
//
//	conn, err := retryrmq.Dial(ctx, "amqp://localhost")
//	...
//	err = conn.Consume(ctx, "orders", func(ctx context.Context, m *retryrmq.Message) error {
//		return ship(ctx, m.Body) // nil acknowledges, an error retries
//	}, retryrmq.DLX(), retryrmq.Retry(retryrmq.Exponential(time.Second, 5*time.Minute)))
//
// Delivery is at least once: a handler may be called more than once for the same message. [Message.MessageID] and [Message.Attempt] help to
// notice that.
//
// A library in Rust does the work, the same one as in the Python, Node and Rust packages. It is linked through cgo.
package retryrmq
