//! Addresses of the device in this process. Programs pass pointers to either memory to the same functions, so no address may be in both.

use std::ops::Range;

use sahasra_cuda_device::KeptAddresses;

/// Addresses that processes have: x86-64 and AArch64 give at most 2^48. The upper half is that of the PTX engine, which chooses addresses
/// that no process of x86-64 has.
const OF_PROCESSES: u64 = 1 << 47;

/// Keeps the device's addresses free of memory of this process.
///
/// # Errors
/// That this process uses some of them.
pub(crate) fn keep(addresses: &Range<u64>) -> Result<Option<KeptAddresses>, String> {
    if addresses.start >= OF_PROCESSES || addresses.is_empty() {
        return Ok(None);
    }
    let (start, end) = (addresses.start, addresses.end);
    let kept = KeptAddresses::keep(start, end - start);
    kept.map(Some).map_err(|error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::OutOfMemory => "raise the limit of the process's address space (ulimit -v)",
            _ => "start the program again",
        };
        format!("this process cannot keep the addresses of the session's device free ({start:#x} to {end:#x}): {error}; {remedy}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_device_are_kept_free_and_those_in_use_are_refused() {
        let free = 0x3e80_0000_0000..0x3e80_0020_0000;
        let kept = keep(&free).unwrap();
        assert!(kept.is_some());
        let refused = keep(&free).unwrap_err();
        assert!(refused.contains("start the program again"), "{refused}");
        assert_eq!(keep(&(1 << 47..1 << 48)), Ok(None), "of the PTX engine");
    }
}
