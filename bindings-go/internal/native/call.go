package native

/*
#include "shim.h"

#cgo noescape rr_take
#cgo nocallback rr_take
*/
import "C"

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"
)

func init() {
	if name := C.rr_mismatch(); name != nil {
		panic(fmt.Sprintf("retryrmq: the native library that was linked is not the one this package was made for "+
			"(%s differs); build both from the same version", C.GoString(name)))
	}
}

// The first byte of b for C, which looks at it only during the call, and how many there are.
func lend(b []byte) (unsafe.Pointer, C.int32_t) {
	if len(b) > math.MaxInt32 {
		panic(errTooLarge) // asked before by everything whose size the user chooses
	}
	return unsafe.Pointer(unsafe.SliceData(b)), C.int32_t(len(b))
}

// Moves what a call gave into Go's memory.
func takeBytes(a C.rr_answer) []byte {
	if a.len == 0 && a.capacity == 0 {
		return nil
	}
	into := make([]byte, int(a.len))
	C.rr_take(unsafe.Pointer(unsafe.SliceData(into)), a.data, a.len, a.capacity)
	return into
}

// Has read look at what a call gave, where it lies until read returns.
func readBorrowed(a C.rr_answer, read func([]byte)) {
	if a.len == 0 && a.capacity == 0 {
		return
	}
	defer C.rr_take(nil, a.data, 0, a.capacity)
	if a.len > 0 {
		// As an integer it went through C, since a pointer of an empty buffer is none for Go. This one points to memory that is not Go's.
		at := *(*unsafe.Pointer)(unsafe.Pointer(&a.data))
		read(unsafe.Slice((*byte)(at), int(a.len)))
	}
}

func bytesOf(a C.rr_answer) ([]byte, error) {
	if a.code != 0 {
		return nil, errorFrom(a)
	}
	return takeBytes(a), nil
}

func valueOf(a C.rr_answer) (uint64, error) {
	if a.code != 0 {
		return 0, errorFrom(a)
	}
	return uint64(a.value), nil
}

func errorFrom(a C.rr_answer) error { return errorOf(int(a.code), takeBytes(a)) }

// An object of the native half. It lives until it is freed and nobody is in one of its methods any more.
type object struct {
	handle uint64
	// Who needs it: its owner, and calls in progress.
	users atomic.Int64
	freed atomic.Bool
	free  func(uint64)
}

func (o *object) own(handle uint64, free func(uint64)) {
	o.handle, o.free = handle, free
	o.users.Store(1)
}

func (o *object) enter() bool {
	for {
		users := o.users.Load()
		if users == 0 {
			return false
		}
		if o.users.CompareAndSwap(users, users+1) {
			return true
		}
	}
}

func (o *object) leave() {
	if o.users.Add(-1) == 0 {
		o.free(o.handle)
	}
}

// Free lets it go, once.
func (o *object) Free() {
	if o.freed.CompareAndSwap(false, true) {
		o.leave()
	}
}

// LiveObjects is how many native objects there are.
func LiveObjects() int64 { return int64(C.rr_live_objects()) }

// Version is the version of the native half.
func Version() string {
	text, err := bytesOf(C.rr_version())
	if err != nil {
		return ""
	}
	return string(text)
}
