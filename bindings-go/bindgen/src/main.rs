//! The stock generator of UniFFI. Its Swift half writes the whole C interface of a library as one header.

fn main() {
    uniffi::uniffi_bindgen_swift();
}
