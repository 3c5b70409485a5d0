//! Names lapin reads as UTF-8, which RabbitMQ takes as bytes.

/// Replaces each byte of every invalid sequence by `?`; whether there was one.
pub(super) fn mend(mut name: &mut [u8]) -> bool {
    // Nearly all names are, and for short ones this is the faster look.
    if name.is_ascii() {
        return false;
    }
    let mut mended = false;
    while let Err(error) = std::str::from_utf8(name) {
        let bad = error.valid_up_to();
        let end = error.error_len().map_or(name.len(), |len| bad + len);
        name[bad..end].fill(b'?');
        mended = true;
        name = &mut name[end..];
    }
    mended
}

/// Mends the short string at `at`; returns where it ends and whether it was mended, or `None` where `bytes` end
/// before it does.
pub(super) fn mend_at(bytes: &mut [u8], at: usize) -> Option<(usize, bool)> {
    let start = at.checked_add(1)?;
    let end = start + usize::from(*bytes.get(at)?);
    let mended = mend(bytes.get_mut(start..end)?);
    Some((end, mended))
}
