// Package batchresult is what the package retryrmq does for otelretryrmq, and for nobody else.
package batchresult

// Each returns what err, of a handler of batches, is for each of its messages; if that is nil, what it is for all. Whether the handler changed the
// slice that it got is asked only if it has returned answers: one that still runs may be changing it. Package retryrmq sets this function.
var Each func(err error, count int, changed func() bool) (each []error, all error)
