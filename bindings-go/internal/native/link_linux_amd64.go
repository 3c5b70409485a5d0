//go:build !dynamic && !musl

package native

import _ "github.com/retryrmq/retryrmq/bindings-go/lib/linux_amd64"
