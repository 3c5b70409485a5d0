//go:build !dynamic

package native

// The library of this platform, as `make go-lib` builds it and the module's zip carries it.

/*
#cgo linux,amd64 LDFLAGS: ${SRCDIR}/../../lib/linux_amd64/libretryrmq_go.a
#cgo linux,arm64 LDFLAGS: ${SRCDIR}/../../lib/linux_arm64/libretryrmq_go.a
#cgo darwin,amd64 LDFLAGS: ${SRCDIR}/../../lib/darwin_amd64/libretryrmq_go.a
#cgo darwin,arm64 LDFLAGS: ${SRCDIR}/../../lib/darwin_arm64/libretryrmq_go.a
#cgo linux LDFLAGS: -lpthread -ldl -lm
#cgo darwin LDFLAGS: -framework Security -framework CoreFoundation -liconv -lm
*/
import "C"
