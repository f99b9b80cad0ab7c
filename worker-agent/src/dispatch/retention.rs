//! Retention of frames that were reported and that no checkpoint covers yet.

use std::collections::VecDeque;

use bytes::Bytes;
use sahasra_wire::{burst::ServerFrame, frame};

/// Size that each entry counts for in addition to its frame.
const ENTRY_BYTES: usize = 128;

#[derive(Debug)]
struct Kept {
    sequence: u64,
    frame: Bytes,
    /// First index and count of each run in the frame.
    indices: Vec<(u64, u64)>,
}

impl Kept {
    fn bytes(&self) -> usize {
        ENTRY_BYTES + self.frame.len() + self.indices.len() * size_of::<(u64, u64)>()
    }
}

/// Encoded frames in the order of their sequence numbers.
#[derive(Debug)]
pub(super) struct Retention {
    kept: VecDeque<Kept>,
    bytes: usize,
    sequence: u64,
}

impl Retention {
    /// Creates an empty retention. The next frame gets the number `sequence + 1`.
    pub(crate) fn after(sequence: u64) -> Self {
        Self {
            kept: VecDeque::new(),
            bytes: 0,
            sequence,
        }
    }

    /// Returns the highest sequence number assigned so far.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the sequence number of the last retained frame, or 0 without one.
    pub(crate) fn last_kept(&self) -> u64 {
        self.kept.back().map_or(0, |kept| kept.sequence)
    }

    /// Returns the memory of the retained frames in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Retains a frame under the next sequence number, unless it has no indices.
    pub(crate) fn keep(&mut self, indices: Vec<(u64, u64)>, frame: impl FnOnce(u64) -> ServerFrame) {
        if indices.is_empty() {
            return;
        }
        self.sequence += 1;
        let kept = Kept {
            sequence: self.sequence,
            frame: frame::encode(&frame(self.sequence)),
            indices,
        };
        self.bytes += kept.bytes();
        self.kept.push_back(kept);
    }

    /// Drops all frames up to a sequence number.
    pub(crate) fn acknowledge(&mut self, sequence: u64) {
        while let Some(kept) = self.kept.pop_front_if(|kept| kept.sequence <= sequence) {
            self.bytes -= kept.bytes();
        }
    }

    /// Drops the frames of which every index is in `covered` (flat pairs of first and last index). A partly covered frame stays whole,
    /// because a coordinator counts an index once however often it arrives.
    pub(crate) fn cover(&mut self, covered: &[u64]) {
        let (pairs, _) = covered.as_chunks::<2>();
        let mut ranges: Vec<(u64, u64)> = pairs.iter().map(|pair| (pair[0], pair[1])).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        let is_covered = |first: u64, count: u64| {
            let place = merged.partition_point(|(start, _)| *start <= first);
            place > 0 && first.saturating_add(count.saturating_sub(1)) <= merged[place - 1].1
        };
        let bytes = &mut self.bytes;
        self.kept.retain(|kept| {
            let dropped = kept.indices.iter().all(|(first, count)| is_covered(*first, *count));
            if dropped {
                *bytes -= kept.bytes();
            }
            !dropped
        });
    }

    /// Returns the frames above a sequence number, in order.
    pub(crate) fn after_sequence(&self, sequence: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let start = self.kept.partition_point(|kept| kept.sequence <= sequence);
        self.kept.range(start..).map(|kept| (kept.sequence, &kept.frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sahasra_wire::burst::{Failures, server_frame};

    fn retention(frames: &[&[(u64, u64)]]) -> Retention {
        let mut retention = Retention::after(0);
        for indices in frames {
            retention.keep(indices.to_vec(), |sequence| {
                ServerFrame::from(server_frame::Kind::Failures(Failures {
                    sequence,
                    ..Failures::default()
                }))
            });
        }
        retention
    }

    fn sequences(retention: &Retention) -> Vec<u64> {
        retention.after_sequence(0).map(|(sequence, _)| sequence).collect()
    }

    #[test]
    fn what_is_acknowledged_is_gone_and_its_memory_too() {
        let mut retention = retention(&[&[(0, 1)], &[(1, 1)], &[(2, 1)]]);
        retention.acknowledge(2);
        assert_eq!((sequences(&retention), retention.last_kept()), (vec![3], 3));
        retention.acknowledge(9);
        assert_eq!(retention.last_kept(), 0);
        assert_eq!((sequences(&retention).len(), retention.bytes(), retention.sequence()), (0, 0, 3));
    }

    #[test]
    fn only_frames_that_are_covered_whole_are_dropped() {
        let mut retention = retention(&[&[(0, 10)], &[(10, 5), (20, 1)], &[(15, 5)], &[(30, 1)]]);
        retention.cover(&[20, 20, 0, 6, 7, 14]);
        assert_eq!(sequences(&retention), [3, 4]);
        retention.cover(&[15, 18]);
        assert_eq!(sequences(&retention), [3, 4]);
        retention.cover(&[]);
        assert_eq!(sequences(&retention), [3, 4]);
    }

    #[test]
    fn reading_on_starts_above_a_sequence_number() {
        let retention = retention(&[&[(0, 1)], &[(1, 1)], &[(2, 1)]]);
        let after: Vec<u64> = retention.after_sequence(1).map(|(sequence, _)| sequence).collect();
        assert_eq!(after, [2, 3]);
    }
}
