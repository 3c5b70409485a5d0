module github.com/retryrmq/retryrmq/tests/scenarios/drivers/go

go 1.24.0

require github.com/retryrmq/retryrmq/bindings-go v0.1.0

replace github.com/retryrmq/retryrmq/bindings-go => ../../../../bindings-go
