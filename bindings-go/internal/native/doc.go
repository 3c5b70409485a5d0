// Package native is the C interface of the native half, in Go's terms: objects with methods, errors as values, bytes in Go's
// own memory. It converts and decides nothing.
package native
