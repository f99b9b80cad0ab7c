//! Copies of more bytes than the caches keep.

/// Number of bytes from which a copy leaves the target out of the caches. Smaller ones may be on their way to somewhere else, in slots of shared
/// memory or frames, and are read soon after.
const STREAMED_BYTES: usize = 8 << 20;

/// Copies like [`std::ptr::copy_nonoverlapping`]. Copies of 8 MiB or more write the target past the caches, where the processor can: it
/// then does not read the target first, which is a third of what such a copy moves. The C library does so only from three quarters of
/// the last cache on, which on a large processor is more than most copies have.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMED_BYTES {
        // SAFETY: the caller's promise.
        return unsafe { stream(source, target, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) }
}

/// Copies at least a line.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// Bytes of a line of the caches, and how many stores write one.
    const LINE: usize = 64;
    const STORES: usize = LINE / size_of::<__m128i>();

    let head = target.align_offset(LINE);
    let lines = (bytes - head) / LINE;
    let tail = bytes - head - lines * LINE;
    // SAFETY: head, lines and tail are the bytes of both ranges, in this order, and each line of the target is aligned. Every processor of
    // this architecture has these instructions. The fence orders the stores before what the caller does next, as other stores are.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head);
        let (mut from, mut to) = (source.add(head).cast::<__m128i>(), target.add(head).cast::<__m128i>());
        for _ in 0..lines {
            let line: [__m128i; STORES] = std::array::from_fn(|part| _mm_loadu_si128(from.add(part)));
            for (part, bytes) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(part), bytes);
            }
            (from, to) = (from.add(STORES), to.add(STORES));
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), tail);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{STREAMED_BYTES, copy};

    #[test]
    fn a_copy_past_the_caches_is_like_any_other() {
        let source: Vec<u8> = (0..STREAMED_BYTES + 9).map(|index| (index % 251) as u8).collect();
        let mut target = vec![0; source.len()];
        // SAFETY: both vectors have as many bytes.
        unsafe { copy(source.as_ptr(), target.as_mut_ptr(), source.len()) };
        assert!(target == source);
    }

    #[cfg(target_arch = "x86_64")]
    proptest! {
        #[test]
        fn a_copy_of_any_size_and_place_changes_its_target_alone(
            bytes in 64usize..1000,
            from in 0usize..70,
            to in 0usize..70,
        ) {
            let source: Vec<u8> = (0..from + bytes).map(|index| (index % 251) as u8).collect();
            let mut target = vec![255; to + bytes + 64];
            // SAFETY: both ranges are within their vectors, which are different.
            unsafe { super::stream(source[from..].as_ptr(), target[to..].as_mut_ptr(), bytes) };
            prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 255));
            prop_assert!(target[to..to + bytes] == source[from..]);
        }
    }
}
