//! Payloads: bytes beside a message, as a connection has read them.

use bytes::Bytes;
use sahasra_memory::Region;
use sahasra_memory::shared::Loan;

/// Size in bytes from which memory is requested in huge pages, because faulting in small pages would cost more than filling the memory.
const HUGE_BYTES: usize = 8 << 20;
/// Largest page size of the system that is assumed for alignment, in bytes.
const PAGE_BYTES: usize = 64 << 10;

/// Bytes beside a message.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Slice of a read buffer that also holds other frames.
    Shared(Bytes),
    /// Bytes that were read directly to their final location: the next region of the memory of a whole tensor.
    InPlace(Region),
    /// Bytes of the memory that the client shares: what is written, or room for what is read.
    Lent(Loan),
}

impl Payload {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::InPlace(bytes) => bytes.len(),
            Self::Lent(loan) => loan.bytes(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes. Those of shared memory are for a copy only, because the client may change them at any time.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Shared(bytes) => bytes,
            Self::InPlace(bytes) => bytes.into(),
            Self::Lent(loan) => Bytes::from_owner(loan),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Shared(bytes)
    }
}

pub(crate) fn zeros(bytes: usize) -> Vec<u8> {
    // The system zeroes the pages when they are first touched.
    let mut zeros = vec![0; bytes];
    if bytes >= HUGE_BYTES {
        ask_for_huge_pages(zeros.as_mut_ptr(), zeros.len());
    }
    zeros
}

/// Advises the system to use huge pages. The advice only affects speed.
fn ask_for_huge_pages(start: *mut u8, bytes: usize) {
    let skipped = start.align_offset(PAGE_BYTES);
    if let Some(rest) = bytes.checked_sub(skipped) {
        let length = rest / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: the range consists of whole pages within the caller's memory, and the advice does not change their content.
        let _ = unsafe { rustix::mm::madvise(start.wrapping_add(skipped).cast(), length, rustix::mm::Advice::LinuxHugepage) };
    }
}
