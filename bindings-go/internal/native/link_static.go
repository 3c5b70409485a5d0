//go:build !dynamic

package native

// The library of this platform, as `make go-lib` builds it and the module's zip carries it. The compiler is told where it is as well,
// so that it says what to do where there is none, and not the linker what is wrong.

/*
#cgo linux,amd64 CFLAGS: -I${SRCDIR}/../../lib/linux_amd64
#cgo linux,arm64 CFLAGS: -I${SRCDIR}/../../lib/linux_arm64
#cgo darwin,amd64 CFLAGS: -I${SRCDIR}/../../lib/darwin_amd64
#cgo darwin,arm64 CFLAGS: -I${SRCDIR}/../../lib/darwin_arm64
#cgo linux,amd64 LDFLAGS: ${SRCDIR}/../../lib/linux_amd64/libretryrmq_go.a
#cgo linux,arm64 LDFLAGS: ${SRCDIR}/../../lib/linux_arm64/libretryrmq_go.a
#cgo darwin,amd64 LDFLAGS: ${SRCDIR}/../../lib/darwin_amd64/libretryrmq_go.a
#cgo darwin,arm64 LDFLAGS: ${SRCDIR}/../../lib/darwin_arm64/libretryrmq_go.a
#cgo linux LDFLAGS: -lpthread -ldl -lm
#cgo darwin LDFLAGS: -framework Security -framework CoreFoundation -liconv -lm

#ifdef __has_include
#if !__has_include(<libretryrmq_go.a>)
#error The native library of retryrmq for this platform is missing: run `make go-lib` in its checkout, with Rust
#endif
#endif
*/
import "C"
