module github.com/retryrmq/retryrmq/bindings-go/watermillretryrmq

go 1.24.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.1
	github.com/retryrmq/retryrmq/bindings-go v0.1.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pkg/errors v0.9.1 // indirect
)

// In the checkout; a program that requires this module uses the released one.
replace github.com/retryrmq/retryrmq/bindings-go => ../
