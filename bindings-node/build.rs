//! Lets the linker leave open what Node brings.

fn main() {
    napi_build::setup();
}
