//go:build dynamic

package native

// The library that somebody else packaged: pkg-config finds retryrmq_go.pc.

/*
#cgo pkg-config: retryrmq_go
*/
import "C"
