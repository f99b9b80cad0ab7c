//! Addresses of this process that only a device has.

use std::io;

/// Addresses at which this process gets no memory until they are dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptAddresses {
    start: usize,
    bytes: usize,
}

impl KeptAddresses {
    /// Keeps addresses free, from a multiple of the system's page.
    ///
    /// # Errors
    /// When this process has something there, or no such addresses.
    pub fn keep(start: u64, bytes: u64) -> io::Result<Self> {
        let of = |number: u64| usize::try_from(number).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let (start, bytes) = (of(start)?, of(bytes)?);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces no mapping, and the new one cannot be accessed.
        let mapped = unsafe { libc::mmap(start as *mut libc::c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let kept = Self {
            start: mapped as usize,
            bytes,
        };
        // Kernels before Linux 4.17 take the address as a hint.
        if kept.start == start {
            Ok(kept)
        } else {
            Err(io::ErrorKind::AddrInUse.into())
        }
    }
}

impl Drop for KeptAddresses {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing is in it.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_kept_until_they_are_dropped() {
        let (start, bytes) = (0x3e00_0000_0000, 2 << 20);
        let kept = KeptAddresses::keep(start, bytes).unwrap();
        assert!(KeptAddresses::keep(start, bytes).is_err());
        drop(kept);
        KeptAddresses::keep(start, bytes).unwrap();
        let local = [0u8; 4096];
        let page = local.as_ptr() as u64 / 4096 * 4096;
        assert!(KeptAddresses::keep(page, 4096).is_err(), "the stack is there");
    }
}
