//go:build !cgo || windows

package native

// There is nothing to link with. This one name is what the compiler complains about.
var _ = retryrmq_needs_cgo_on_Linux_or_macOS__set_CGO_ENABLED_to_1_and_install_a_C_compiler
