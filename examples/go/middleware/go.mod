module github.com/retryrmq/retryrmq/examples/go/middleware

go 1.24.0

require (
	github.com/getsentry/sentry-go v0.43.0
	github.com/retryrmq/retryrmq/bindings-go v0.1.0
	modernc.org/sqlite v1.46.0
)

require (
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/ncruces/go-strftime v1.0.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	golang.org/x/exp v0.0.0-20251023183803-a4bb9ffd2546 // indirect
	golang.org/x/sys v0.37.0 // indirect
	golang.org/x/text v0.14.0 // indirect
	modernc.org/libc v1.67.6 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.11.0 // indirect
)

replace github.com/retryrmq/retryrmq/bindings-go => ../../../bindings-go
