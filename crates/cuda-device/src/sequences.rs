//! Stored sequences of operations, which a client replays: the graphs of a CUDA program.

use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Failure, FailureKind, Operation, SequenceId};

/// Maximum number of sequences of a queue.
pub const MAX_SEQUENCES: usize = 16_384;
/// Maximum number of operations of a sequence.
pub const MAX_SEQUENCE_OPERATIONS: usize = 131_072;

/// A sequence. `R` counts memory until it is dropped.
#[derive(Debug)]
struct Sequence<R> {
    operations: Arc<Vec<Operation>>,
    reservations: Vec<R>,
    /// Why a part of it could not be stored.
    failure: Option<Failure>,
}

/// Sequences of a queue.
#[derive(Debug)]
pub struct Sequences<R>(HashMap<SequenceId, Sequence<R>>);

impl<R> Default for Sequences<R> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<R> Sequences<R> {
    /// Appends operations to a sequence, creating it if needed. `reserve` counts bytes of memory. If there is no room, the sequence is dropped
    /// and each replay fails.
    ///
    /// # Errors
    /// The failure of `reserve`; [`FailureKind::Protocol`] for operations that no sequence has, and beyond the limits.
    pub fn extend(
        &mut self,
        id: SequenceId,
        operations: &[Operation],
        reserve: impl FnOnce(u64) -> Result<R, Failure>,
    ) -> Result<(), Failure> {
        check(operations)?;
        let count = self.0.len();
        if count >= MAX_SEQUENCES && !self.0.contains_key(&id) {
            return Err(protocol(format!("more than {MAX_SEQUENCES} sequences")));
        }
        let sequence = self.0.entry(id).or_insert_with(|| Sequence {
            operations: Arc::default(),
            reservations: Vec::new(),
            failure: None,
        });
        if sequence.operations.len() + operations.len() > MAX_SEQUENCE_OPERATIONS {
            return Err(protocol(format!("a sequence of more than {MAX_SEQUENCE_OPERATIONS} operations")));
        }
        if sequence.failure.is_some() || operations.is_empty() {
            return Ok(());
        }
        match reserve(operations.iter().map(Operation::stored_bytes).sum()) {
            Ok(reservation) => {
                sequence.reservations.push(reservation);
                Arc::make_mut(&mut sequence.operations).extend(operations.iter().map(owned));
                Ok(())
            }
            Err(failure) => {
                sequence.operations = Arc::default();
                sequence.reservations.clear();
                sequence.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    /// Replaces operations by others of the same kinds that carry at most as many bytes.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`] if there is no such sequence or operation, or it is of another kind or size.
    pub fn amend(&mut self, id: SequenceId, index: u32, operations: &[Operation]) -> Result<(), Failure> {
        let sequence = self.0.get_mut(&id).ok_or_else(|| unknown(id))?;
        if sequence.failure.is_some() {
            return Ok(());
        }
        let start = index as usize;
        let range = start..start.saturating_add(operations.len());
        let replaced = Arc::make_mut(&mut sequence.operations).get_mut(range);
        let replaced = replaced.ok_or_else(|| protocol(format!("sequence {} has no operation {index}", id.0)))?;
        let fits = |(old, new): (&Operation, &Operation)| discriminant(old) == discriminant(new) && old.payload() >= new.payload();
        if !replaced.iter().zip(operations).all(fits) {
            return Err(protocol(
                "an operation of a sequence was replaced by one of another kind or size".to_owned(),
            ));
        }
        replaced.iter_mut().zip(operations).for_each(|(old, new)| *old = owned(new));
        Ok(())
    }

    /// The operations of a sequence.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`] if there is none; the failure with which it was dropped.
    pub fn operations(&self, id: SequenceId) -> Result<Arc<Vec<Operation>>, Failure> {
        let sequence = self.0.get(&id).ok_or_else(|| unknown(id))?;
        match &sequence.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(Arc::clone(&sequence.operations)),
        }
    }

    /// Frees a sequence.
    ///
    /// # Errors
    /// [`FailureKind::Protocol`] if there is none.
    pub fn erase(&mut self, id: SequenceId) -> Result<(), Failure> {
        self.0.remove(&id).map(|_| ()).ok_or_else(|| unknown(id))
    }
}

/// Refuses what a sequence cannot have.
fn check(operations: &[Operation]) -> Result<(), Failure> {
    if operations.iter().all(Operation::is_storable) {
        return Ok(());
    }
    Err(protocol("a sequence has launches, copies and fills only".to_owned()))
}

/// The operation with its parameters in memory of their own: those of a decoded operation keep the whole batch.
fn owned(operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    if let Operation::Launch(launch) = &mut operation {
        launch.parameters = Bytes::copy_from_slice(&launch.parameters);
    }
    operation
}

fn protocol(message: String) -> Failure {
    Failure::new(FailureKind::Protocol, message)
}

fn unknown(id: SequenceId) -> Failure {
    protocol(format!("sequence {} not found", id.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, LaunchRequest, ModuleId, Region};

    const ID: SequenceId = SequenceId(1);

    fn fill(value: u32) -> Operation {
        Operation::Fill {
            to: Region::linear(1 << 47),
            extent: Extent::linear(4),
            value,
            element_bytes: 4,
        }
    }

    fn copy() -> Operation {
        Operation::Copy {
            from: Region::linear(0),
            to: Region::linear(8),
            extent: Extent::linear(4),
        }
    }

    #[test]
    fn a_sequence_grows_changes_and_ends() {
        let mut sequences = Sequences::default();
        let mut counted = 0;
        for part in [&[fill(1), copy()][..], &[fill(3)]] {
            sequences
                .extend(ID, part, |bytes| {
                    counted += bytes;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(counted, 3 * STORED);
        sequences.amend(ID, 2, &[fill(4)]).unwrap();
        assert_eq!(*sequences.operations(ID).unwrap(), [fill(1), copy(), fill(4)]);
        sequences.erase(ID).unwrap();
        assert!(sequences.operations(ID).is_err() && sequences.erase(ID).is_err());
    }

    const STORED: u64 = 256;

    #[test]
    fn stored_launches_do_not_keep_the_batch_in_which_they_came() {
        let launch = |parameters| {
            Operation::Launch(Box::new(LaunchRequest {
                module: ModuleId(1),
                function: 0,
                grid: [1; 3],
                block: [1; 3],
                dynamic_shared_bytes: 0,
                stack_bytes: 0,
                cooperative: false,
                parameters,
            }))
        };
        let mut sequences = Sequences::default();
        let batches = [1, 2].map(|byte| Bytes::from(vec![byte; 1 << 20]));
        let parts = batches.clone().map(|batch| [launch(batch.slice(7..15))]);
        sequences.extend(ID, &parts[0], |_| Ok(())).unwrap();
        assert_eq!(*sequences.operations(ID).unwrap(), parts[0]);
        sequences.amend(ID, 0, &parts[1]).unwrap();
        assert_eq!(*sequences.operations(ID).unwrap(), parts[1]);
        sequences.extend(ID, &parts[0], |_| Ok(())).unwrap();
        drop(parts);
        assert!(batches.iter().all(Bytes::is_unique));
    }

    #[test]
    fn an_extension_without_operations_stores_nothing() {
        let mut sequences = Sequences::default();
        for _ in 0..2 {
            let reserve = |bytes| -> Result<(), Failure> { panic!("{bytes} bytes reserved") };
            sequences.extend(ID, &[], reserve).unwrap();
        }
        assert_eq!(*sequences.operations(ID).unwrap(), []);
    }

    #[test]
    fn a_sequence_without_room_is_not_replayed_in_part() {
        let mut sequences = Sequences::default();
        let full = || Failure::new(FailureKind::OutOfMemory, "full");
        sequences.extend(ID, &[fill(1)], |_| Ok(())).unwrap();
        assert_eq!(sequences.extend(ID, &[fill(2)], |_| Err(full())), Err(full()));
        // Reported once.
        assert_eq!(sequences.extend(ID, &[fill(3)], |_| Ok(())), Ok(()));
        assert_eq!(sequences.amend(ID, 2, &[fill(3)]), Ok(()));
        assert_eq!(sequences.operations(ID), Err(full()));
        sequences.erase(ID).unwrap();
    }

    #[test]
    fn what_a_client_must_not_send_is_a_protocol_failure() {
        let mut sequences = Sequences::default();
        let ok = |_| Ok(());
        for operation in [Operation::Mark(1), Operation::Replay(ID), Operation::Erase(ID)] {
            assert_eq!(sequences.extend(ID, &[operation], ok).unwrap_err().kind, FailureKind::Protocol);
        }
        sequences.extend(ID, &[fill(1), copy()], ok).unwrap();
        for (index, operation) in [(2, fill(1)), (u32::MAX, fill(1)), (1, fill(1)), (0, Operation::Mark(1))] {
            assert_eq!(sequences.amend(ID, index, &[operation]).unwrap_err().kind, FailureKind::Protocol);
        }
        let many = vec![fill(1); MAX_SEQUENCE_OPERATIONS - 1];
        assert_eq!(sequences.extend(ID, &many, ok).unwrap_err().kind, FailureKind::Protocol);
        for id in 2..=MAX_SEQUENCES as u64 {
            sequences.extend(SequenceId(id), &[], ok).unwrap();
        }
        assert_eq!(sequences.extend(SequenceId(0), &[], ok).unwrap_err().kind, FailureKind::Protocol);
        sequences.extend(ID, &[], ok).unwrap();
    }
}
