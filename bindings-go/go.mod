module github.com/retryrmq/retryrmq/bindings-go

go 1.24.0

// For this module's own tests.
require (
	github.com/rabbitmq/amqp091-go v1.16.0
	go.uber.org/goleak v1.3.0
)
