//! Pinned memory that the session reads for writes that it has not executed yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sahasra_cuda_device::{HostBlock, Ticket};

/// Blocks of a queue, in the order of its operations.
#[derive(Debug, Default)]
pub(crate) struct PinnedBlocks {
    blocks: Mutex<VecDeque<(Ticket, Arc<HostBlock>)>>,
    has_blocks: AtomicBool,
}

impl PinnedBlocks {
    /// Keeps a block until the operation of a ticket has been executed.
    pub(crate) fn keep(&self, block: &Arc<HostBlock>, ticket: Ticket) {
        self.blocks.lock().push_back((ticket, Arc::clone(block)));
        self.has_blocks.store(true, Ordering::Release);
    }

    /// Releases the blocks of operations that have been executed.
    pub(crate) fn release(&self, executed: Ticket) {
        if !self.has_blocks.load(Ordering::Acquire) {
            return;
        }
        let mut blocks = self.blocks.lock();
        let count = blocks.iter().take_while(|(ticket, _)| *ticket <= executed).count();
        let released: Vec<_> = blocks.drain(..count).collect();
        self.has_blocks.store(!blocks.is_empty(), Ordering::Release);
        // The last reference to a block returns its pages to the system, which takes time.
        drop(blocks);
        drop(released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_kept_until_its_write_was_executed() {
        let (pinned, block) = (PinnedBlocks::default(), Arc::new(HostBlock::new(8, 8).unwrap()));
        pinned.release(Ticket(9));
        pinned.keep(&block, Ticket(3));
        pinned.keep(&block, Ticket(5));
        for (executed, references) in [(2, 3), (3, 2), (4, 2), (5, 1), (5, 1)] {
            pinned.release(Ticket(executed));
            assert_eq!(Arc::strong_count(&block), references, "after {executed}");
        }
    }
}
