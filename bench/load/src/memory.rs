//! What a process holds in memory, from /proc.

use std::io;

pub(crate) fn memory_bytes(pid: u64) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kibibytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().split(' ').next())
        .and_then(|number| number.parse::<u64>().ok())
        .ok_or_else(|| io::Error::other("no VmRSS in /proc; memory is measured on Linux"))?;
    Ok(kibibytes * 1024)
}
