//go:build !dynamic

package native

// The library of this platform, as `make go-lib` builds it and the module's zip carries it. The compiler is told where it is as well,
// so that it says what to do where there is none, or where its C library is the other one, and not the linker what is wrong.
// With `-tags musl` it is the one for Linux with musl, such as Alpine, and for programs that are linked statically.

/*
#cgo linux,amd64,!musl CFLAGS: -I${SRCDIR}/../../lib/linux_amd64
#cgo linux,amd64,musl CFLAGS: -I${SRCDIR}/../../lib/linux_amd64_musl
#cgo linux,arm64,!musl CFLAGS: -I${SRCDIR}/../../lib/linux_arm64
#cgo linux,arm64,musl CFLAGS: -I${SRCDIR}/../../lib/linux_arm64_musl
#cgo darwin,amd64 CFLAGS: -I${SRCDIR}/../../lib/darwin_amd64
#cgo darwin,arm64 CFLAGS: -I${SRCDIR}/../../lib/darwin_arm64
#cgo linux,amd64,!musl LDFLAGS: ${SRCDIR}/../../lib/linux_amd64/libretryrmq_go.a
#cgo linux,amd64,musl LDFLAGS: ${SRCDIR}/../../lib/linux_amd64_musl/libretryrmq_go.a
#cgo linux,arm64,!musl LDFLAGS: ${SRCDIR}/../../lib/linux_arm64/libretryrmq_go.a
#cgo linux,arm64,musl LDFLAGS: ${SRCDIR}/../../lib/linux_arm64_musl/libretryrmq_go.a
#cgo darwin,amd64 LDFLAGS: ${SRCDIR}/../../lib/darwin_amd64/libretryrmq_go.a
#cgo darwin,arm64 LDFLAGS: ${SRCDIR}/../../lib/darwin_arm64/libretryrmq_go.a
#cgo linux,musl CFLAGS: -DRETRYRMQ_MUSL
#cgo linux LDFLAGS: -lpthread -ldl -lm
#cgo darwin LDFLAGS: -framework Security -framework CoreFoundation -liconv -lm

#include <stdlib.h>
#if defined(__linux__) && !defined(__GLIBC__) && !defined(RETRYRMQ_MUSL)
#error This C compiler is for musl: build with `-tags musl`
#elif defined(__GLIBC__) && defined(RETRYRMQ_MUSL)
#error This C compiler is for glibc: build without `-tags musl`, or set CC to one for musl, such as musl-gcc
#elif defined(__has_include)
#if !__has_include(<libretryrmq_go.a>)
#error The native library of retryrmq for this platform is missing: run `make go-lib` in its checkout, with Rust, and point a replace in go.mod there
#endif
#endif
*/
import "C"
