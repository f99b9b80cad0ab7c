//! Bytes beside a message, as a connection read them.

use bytes::Bytes;
use sahasra_memory::Region;

/// From here on memory is asked for in huge pages: to touch it costs more than to fill it otherwise.
const HUGE_BYTES: usize = 8 << 20;
/// What the system counts memory in, at most.
const PAGE_BYTES: usize = 64 << 10;

/// Bytes beside a message.
#[derive(Debug)]
pub enum Payload {
    /// A piece of what was read, among other frames.
    Shared(Bytes),
    /// Read to where it belongs: the next piece of memory that was made for a whole tensor.
    InPlace(Region),
}

impl Payload {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::InPlace(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Shared(bytes) => bytes,
            Self::InPlace(bytes) => bytes.into(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Shared(bytes)
    }
}

/// So many zeros.
pub fn zeros(bytes: usize) -> Vec<u8> {
    // Zeroed by the system, page by page when they are touched.
    let mut zeros = vec![0; bytes];
    if bytes >= HUGE_BYTES {
        ask_for_huge_pages(zeros.as_mut_ptr(), zeros.len());
    }
    zeros
}

/// Advice to the system; that it is not taken costs time and nothing else.
fn ask_for_huge_pages(start: *mut u8, bytes: usize) {
    let skipped = start.align_offset(PAGE_BYTES);
    if let Some(rest) = bytes.checked_sub(skipped) {
        let length = rest / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: pages that lie within the caller's memory altogether; and the advice changes nothing of what is in any.
        let _ = unsafe { rustix::mm::madvise(start.wrapping_add(skipped).cast(), length, rustix::mm::Advice::LinuxHugepage) };
    }
}
