//go:build !dynamic

package native

import _ "github.com/retryrmq/retryrmq/bindings-go/lib/darwin_amd64"
