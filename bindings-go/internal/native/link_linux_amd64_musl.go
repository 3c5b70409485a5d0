//go:build !dynamic && musl && linux && amd64

package native

import _ "github.com/retryrmq/retryrmq/bindings-go/lib/linux_amd64_musl"
