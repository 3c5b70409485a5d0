//! The names of errors, for rules.

use std::{any::type_name, error::Error as StdError, io};

/// Python's name, so that one rule works in all languages.
pub(super) const TIMEOUT: &str = "TimeoutError";

/// The names of an error whose type is known here, the most telling one first. The type behind a reference can only be found by trying one
/// after the other.
pub(super) fn of(error: &(dyn StdError + 'static)) -> Vec<String> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return io_names(error.kind());
    }
    if let Some(error) = error.downcast_ref::<crate::Error>() {
        let mut names = vec!["retryrmq::Error".to_owned(), error.code().to_owned()];
        names.extend((error.kind() == crate::ErrorKind::Timeout).then(|| TIMEOUT.to_owned()));
        return names;
    }
    if error.is::<std::fmt::Error>() {
        return vec!["fmt::Error".to_owned()];
    }
    if error.is::<tokio::time::error::Elapsed>() {
        return vec!["Elapsed".to_owned(), TIMEOUT.to_owned()];
    }
    #[cfg(feature = "tower")]
    if error.is::<tower::timeout::error::Elapsed>() {
        return vec!["Elapsed".to_owned(), TIMEOUT.to_owned()];
    }
    if error.is::<super::InvalidBody>() {
        return vec!["InvalidBody".to_owned()];
    }
    if let Some(error) = error.downcast_ref::<std::sync::mpsc::RecvTimeoutError>() {
        let timeout = *error == std::sync::mpsc::RecvTimeoutError::Timeout;
        let mut names = vec!["RecvTimeoutError".to_owned()];
        names.extend(timeout.then(|| TIMEOUT.to_owned()));
        return names;
    }
    standard(error).into_iter().collect()
}

fn io_names(kind: io::ErrorKind) -> Vec<String> {
    let mut names = Vec::new();
    // A kind without a name prints as text that cannot be a name.
    let kind_name = format!("{kind:?}");
    if kind != io::ErrorKind::Other && kind_name != "Uncategorized" {
        names.push(kind_name);
    }
    if kind == io::ErrorKind::TimedOut {
        names.push(TIMEOUT.to_owned());
    }
    names.push("io::Error".to_owned());
    names
}

fn standard(error: &(dyn StdError + 'static)) -> Option<String> {
    macro_rules! any_of {
        ($($known:ty),+ $(,)?) => {
            $(if error.is::<$known>() {
                return Some(short(type_name::<$known>()));
            })+
        };
    }
    any_of!(
        std::alloc::LayoutError,
        std::array::TryFromSliceError,
        std::cell::BorrowError,
        std::cell::BorrowMutError,
        std::char::CharTryFromError,
        std::char::DecodeUtf16Error,
        std::char::ParseCharError,
        std::collections::TryReserveError,
        std::env::JoinPathsError,
        std::env::VarError,
        std::ffi::FromBytesUntilNulError,
        std::ffi::FromBytesWithNulError,
        std::ffi::FromVecWithNulError,
        std::ffi::IntoStringError,
        std::ffi::NulError,
        std::net::AddrParseError,
        std::num::ParseFloatError,
        std::num::ParseIntError,
        std::num::TryFromIntError,
        std::path::StripPrefixError,
        std::str::ParseBoolError,
        std::str::Utf8Error,
        std::string::FromUtf16Error,
        std::string::FromUtf8Error,
        std::sync::mpsc::RecvError,
        std::sync::mpsc::TryRecvError,
        std::thread::AccessError,
        std::time::SystemTimeError,
        std::time::TryFromFloatSecsError,
        tokio::sync::AcquireError,
        tokio::sync::TryAcquireError,
        tokio::sync::oneshot::error::RecvError,
        tokio::task::JoinError,
    );
    None
}

/// `shop::orders::OrderError` becomes `OrderError`. If that says nothing, the crate stays: `reqwest::Error`.
pub(super) fn short(name: &str) -> String {
    let name = name.trim_start_matches('&');
    let base = name.split('<').next().unwrap_or(name);
    let last = base.rsplit("::").next().unwrap_or(base);
    match (last, base.split("::").next()) {
        ("Error", Some(of)) if of != last => format!("{of}::{last}"),
        _ => last.to_owned(),
    }
}
