//! Names that lapin reads as UTF-8, and RabbitMQ as bytes.

/// Replaces each byte of every invalid sequence by `?`. Returns whether there was one.
pub(super) fn repair(mut name: &mut [u8]) -> bool {
    // Nearly all names are ASCII, and for short ones this check is faster.
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

/// Repairs the short string at `at`. Returns where it ends and whether it was repaired, or `None` if `bytes` ends before it does.
pub(super) fn repair_at(bytes: &mut [u8], at: usize) -> Option<(usize, bool)> {
    let start = at.checked_add(1)?;
    let end = start + usize::from(*bytes.get(at)?);
    let mended = repair(bytes.get_mut(start..end)?);
    Some((end, mended))
}
