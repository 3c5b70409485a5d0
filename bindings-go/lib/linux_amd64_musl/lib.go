// Package lib stands beside the static library of this platform, so that `go mod vendor` takes it along.
package lib
