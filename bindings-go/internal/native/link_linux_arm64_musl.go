//go:build !dynamic && musl && linux && arm64

package native

import _ "github.com/retryrmq/retryrmq/bindings-go/lib/linux_arm64_musl"
