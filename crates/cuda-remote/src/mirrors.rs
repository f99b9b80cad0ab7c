//! Memory of this process that kernels elsewhere access: each block has a copy in the device's memory, at the block's own address.
//!
//! Either side owns a block. The host does until an operation that may access it is submitted, which copies it to the device. The device does
//! until a wait for everything, a read or an unmapping, which copy it back. CUDA forbids programs to access such memory while kernels may.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sahasra_cuda_device::HostBlock;

/// Alignment of memory on the device in bytes.
const ALIGNMENT: u64 = 256;

#[derive(Debug)]
pub(crate) struct Mirror {
    block: Arc<HostBlock>,
    is_on_device: bool,
}

/// Keeps the blocks with the device.
pub(crate) type Guard<'a> = MutexGuard<'a, Vec<Mirror>>;

/// Blocks of a context.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    mirrors: Mutex<Vec<Mirror>>,
    /// Number of blocks, and of those that the device owns, for callers that check them often.
    count: AtomicUsize,
    on_device: AtomicUsize,
}

/// First address and length of the device's memory for a block.
pub(crate) fn span(block: &HostBlock) -> (u64, u64) {
    let start = block.pointer() as u64;
    let first = start - start % ALIGNMENT;
    let end = (start + block.bytes().max(1) as u64).next_multiple_of(ALIGNMENT);
    (first, end - first)
}

impl Mirrors {
    /// Whether the device's memory for a block would overlap that for another.
    pub(crate) fn overlaps(&self, block: &HostBlock) -> bool {
        let (start, bytes) = span(block);
        self.touch(start, bytes)
    }

    /// Whether bytes of the device from an address on are within the device's memory for a block.
    pub(crate) fn touch(&self, start: u64, bytes: u64) -> bool {
        self.has_any()
            && self.mirrors.lock().iter().any(|mirror| {
                let (other, length) = span(&mirror.block);
                start < other.saturating_add(length) && other < start.saturating_add(bytes)
            })
    }

    /// Whether there are blocks.
    pub(crate) fn has_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    pub(crate) fn add(&self, block: Arc<HostBlock>) {
        self.mirrors.lock().push(Mirror {
            block,
            is_on_device: false,
        });
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Removes the block at an address. Returns the address of the device's memory for it.
    pub(crate) fn remove(&self, address: u64) -> Option<u64> {
        if !self.has_any() {
            return None;
        }
        let mut mirrors = self.mirrors.lock();
        let place = mirrors.iter().position(|mirror| mirror.block.pointer() as u64 == address)?;
        let removed = mirrors.swap_remove(place);
        self.count.fetch_sub(1, Ordering::Release);
        if removed.is_on_device {
            self.on_device.fetch_sub(1, Ordering::Release);
        }
        Some(span(&removed.block).0)
    }

    /// Whether this block is one of them.
    pub(crate) fn has(&self, block: &HostBlock) -> bool {
        self.mirrors
            .lock()
            .iter()
            .any(|mirror| mirror.block.pointer() == block.pointer() && mirror.block.bytes() == block.bytes())
    }

    /// Passes the blocks that the host owns to `send`, and leaves them to the device. Returns a guard if there are blocks.
    pub(crate) fn to_device(&self, send: impl Fn(&HostBlock)) -> Option<Guard<'_>> {
        if !self.has_any() {
            return None;
        }
        let mut mirrors = self.mirrors.lock();
        for mirror in mirrors.iter_mut().filter(|mirror| !mirror.is_on_device) {
            send(&mirror.block);
            mirror.is_on_device = true;
            self.on_device.fetch_add(1, Ordering::Release);
        }
        Some(mirrors)
    }

    /// Whether the device owns a block.
    pub(crate) fn are_on_device(&self) -> bool {
        self.on_device.load(Ordering::Acquire) > 0
    }

    /// Passes the blocks that the device owns to `receive`, which copies them back, and leaves them to the host if that succeeds.
    pub(crate) fn to_host<E>(&self, receive: impl FnOnce(&[&HostBlock]) -> Result<(), E>) -> Result<(), E> {
        let mut mirrors = self.mirrors.lock();
        let blocks: Vec<&HostBlock> = mirrors
            .iter()
            .filter(|mirror| mirror.is_on_device)
            .map(|mirror| &*mirror.block)
            .collect();
        receive(&blocks)?;
        for mirror in mirrors.iter_mut() {
            mirror.is_on_device = false;
        }
        self.on_device.store(0, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: usize) -> Arc<HostBlock> {
        Arc::new(HostBlock::new(bytes, 4096).unwrap())
    }

    #[test]
    fn each_side_gets_what_the_other_owns() {
        let mirrors = Mirrors::default();
        let (first, second) = (block(8), block(16));
        let sent = Mutex::new(Vec::new());
        let send = |block: &HostBlock| sent.lock().push(block.bytes());
        assert!(mirrors.to_device(send).is_none());
        mirrors.add(Arc::clone(&first));
        drop(mirrors.to_device(send));
        mirrors.add(Arc::clone(&second));
        drop(mirrors.to_device(send));
        drop(mirrors.to_device(send));
        assert_eq!(*sent.lock(), [8, 16]);
        assert!(mirrors.are_on_device());
        assert_eq!(mirrors.to_host(|_| Err(())), Err(()));
        assert!(mirrors.are_on_device(), "a failed copy changes nothing");
        let mut received = 0;
        let counted = mirrors.to_host(|blocks| {
            received = blocks.len();
            Ok::<_, ()>(())
        });
        assert_eq!((counted, received), (Ok(()), 2));
        assert!(!mirrors.are_on_device());
        drop(mirrors.to_device(send));
        assert!(mirrors.has(&first) && mirrors.are_on_device());
        assert_eq!(mirrors.remove(first.pointer() as u64), Some(first.pointer() as u64));
        assert_eq!(mirrors.remove(first.pointer() as u64), None);
        assert!(mirrors.are_on_device());
        mirrors.remove(second.pointer() as u64).unwrap();
        assert!(!mirrors.are_on_device());
    }

    #[test]
    fn the_devices_memory_for_two_blocks_does_not_overlap() {
        let mirrors = Mirrors::default();
        let whole = block(512);
        let part = |offset: usize, bytes: usize| {
            let start = std::ptr::NonNull::new(whole.pointer().wrapping_add(offset)).unwrap();
            // SAFETY: the bytes are those of a block that lives longer.
            Arc::new(unsafe { HostBlock::borrowed(start, bytes) })
        };
        let start = whole.pointer() as u64;
        assert_eq!(span(&part(10, 4)), (start, 256));
        assert_eq!(span(&part(250, 10)), (start, 512));
        mirrors.add(part(10, 4));
        assert!(mirrors.overlaps(&part(200, 4)));
        assert!(mirrors.overlaps(&part(250, 10)));
        assert!(!mirrors.overlaps(&part(256, 10)));
    }
}
