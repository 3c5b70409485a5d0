//! Writes what the native library of the Go module exports as plain C: `retryrmq_go.h` has the functions, and `checksums.h` what the library must
//! answer at the start. UniFFI has left both in the library; its own generator of a C header is made for Swift, and writes ten times as much.

use std::{
    error::Error,
    fmt::Write,
    path::{Path, PathBuf},
};

use uniffi_bindgen::{
    BindgenLoader, BindgenPaths, ComponentInterface, GlobalConfig,
    interface::{FfiFunction, FfiType},
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The types of UniFFI's calling convention.
const TYPES: &str = "// The functions of the native library. Written by bindings-go/header.

#pragma once

#include <stdint.h>

// Bytes that Rust has allocated.
typedef struct RustBuffer {
    uint64_t capacity;
    uint64_t len;
    uint8_t *data;
} RustBuffer;

// Bytes that Rust reads during a call.
typedef struct ForeignBytes {
    int32_t len;
    const uint8_t *data;
} ForeignBytes;

// The result of a call: 0 for success, 1 for an error, 2 for a panic.
typedef struct RustCallStatus {
    int8_t code;
    RustBuffer error_buf;
} RustCallStatus;

";

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [library, folder] = arguments.as_slice() else {
        return Err("usage: retryrmq-go-bindgen LIBRARY FOLDER".into());
    };
    let interface = interface(library)?;
    std::fs::write(folder.join("retryrmq_go.h"), header(&interface)?)?;
    std::fs::write(folder.join("checksums.h"), checksums(&interface)?)?;
    Ok(())
}

/// Reads what a library says of itself.
fn interface(library: &Path) -> Result<ComponentInterface> {
    let path = library
        .to_str()
        .ok_or("the path of the library is not UTF-8")?;
    let loader = BindgenLoader::new(BindgenPaths::default(), GlobalConfig::default());
    let mut interfaces = loader.load_cis(loader.load_metadata(path.as_ref())?)?;
    let mut interface = interfaces.pop().ok_or("the library exports nothing")?;
    if !interfaces.is_empty() {
        return Err("the library exports the interfaces of several crates".into());
    }
    interface.derive_ffi_funcs()?;
    Ok(interface)
}

fn header(interface: &ComponentInterface) -> Result<String> {
    let mut text = TYPES.to_owned();
    for function in interface.iter_ffi_function_definitions_non_async() {
        writeln!(text, "{}", declaration(&function)?)?;
    }
    Ok(text)
}

fn declaration(function: &FfiFunction) -> Result<String> {
    let returned = function.return_type().map_or(Ok("void"), c_type)?;
    let mut parameters = Vec::new();
    for argument in function.arguments() {
        parameters.push(format!(
            "{} {}",
            c_type(&argument.type_())?,
            argument.name()
        ));
    }
    if function.has_rust_call_status_arg() {
        parameters.push("RustCallStatus *status".to_owned());
    }
    if parameters.is_empty() {
        parameters.push("void".to_owned());
    }
    Ok(format!(
        "{returned} {}({});",
        function.name(),
        parameters.join(", ")
    ))
}

fn c_type(of: &FfiType) -> Result<&'static str> {
    Ok(match of {
        FfiType::UInt8 => "uint8_t",
        FfiType::Int8 => "int8_t",
        FfiType::UInt16 => "uint16_t",
        FfiType::Int16 => "int16_t",
        FfiType::UInt32 => "uint32_t",
        FfiType::Int32 => "int32_t",
        FfiType::UInt64 | FfiType::Handle => "uint64_t",
        FfiType::Int64 => "int64_t",
        FfiType::Float32 => "float",
        FfiType::Float64 => "double",
        FfiType::RustBuffer(_) => "RustBuffer",
        FfiType::ForeignBytes => "ForeignBytes",
        other => {
            return Err(
                format!("{other:?} has no C type here: nothing exported has used it yet").into(),
            );
        }
    })
}

fn checksums(interface: &ComponentInterface) -> Result<String> {
    let mut text = "// What the library answers when it is the one that retryrmq_go.h describes. Written by bindings-go/header.\n".to_owned();
    writeln!(text, "CONTRACT({})", interface.uniffi_contract_version())?;
    for (function, checksum) in interface.iter_checksums() {
        writeln!(text, "CHECKSUM({function}, {checksum})")?;
    }
    Ok(text)
}
