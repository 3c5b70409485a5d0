module github.com/retryrmq/retryrmq/bindings-go

go 1.24.0
