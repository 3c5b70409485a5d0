//go:build !cgo || windows || (!dynamic && !(linux && amd64) && !(linux && arm64) && !(darwin && amd64) && !(darwin && arm64))

package native

// There is nothing to link with. This one name is what the compiler complains about.
var _ = retryrmq_needs_cgo_on_Linux_or_macOS_for_amd64_or_arm64__set_CGO_ENABLED_to_1_and_install_a_C_compiler
