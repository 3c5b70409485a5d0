//! What the operating system says of this process.

use std::{fs, time::Duration};

/// CPU time of all threads of this process so far, in user and system mode.
pub(crate) fn cpu() -> Duration {
    cpu_at(11)
}

/// CPU time of the processes that this one has started, and that have ended.
pub(crate) fn cpu_of_children() -> Duration {
    cpu_at(13)
}

/// Fields 14 and 15 of proc(5), or 16 and 17, in ticks of 10 ms on every Linux in use; the name in field 2 may hold spaces.
fn cpu_at(field: usize) -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(field)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// Resident memory of this process in KiB.
pub(crate) fn resident() -> u64 {
    resident_of("self")
}

/// Resident memory of the process with this id in KiB.
pub(crate) fn resident_of(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok())
        .unwrap_or(0)
}
