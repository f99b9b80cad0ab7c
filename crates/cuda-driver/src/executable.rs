//! Executable graphs: the work of a graph as sequences that the device has stored, and as steps of the host between them.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use sahasra_cuda_boundary::log;
use sahasra_cuda_device::{MAX_SEQUENCE_OPERATIONS, MAX_SEQUENCES, Operation, SequenceId};

use crate::boundary::Handle;
use crate::context::Context;
use crate::graph::Graph;
use crate::parameters::{Copy3d, HostParameters};
use crate::status::Status;
use crate::table::new_handle;

/// Maximum charge of the operations in one `Extend`, below the size of a batch.
const MESSAGE_BYTES: u64 = 48 << 10;

/// An executable graph.
pub(crate) struct Executable {
    pub(crate) handle: Handle,
    /// Number that no other executable graph has.
    pub(crate) id: u32,
    pub(crate) context: Weak<Context>,
    pub(crate) context_id: u64,
    pub(crate) flags: u64,
    pub(crate) state: Mutex<State>,
}

/// What changes with an update.
pub(crate) struct State {
    /// The graph as it was instantiated, with the updates since.
    pub(crate) graph: Arc<Graph>,
    pub(crate) program: Program,
    /// Bytes of device memory that the sequences count with.
    pub(crate) charged: u64,
}

/// A part of a node's work.
#[derive(Clone)]
pub(crate) enum Piece {
    Device(Operation),
    Host(Step),
}

/// What a launch does next.
#[derive(Clone)]
pub(crate) enum Step {
    Replay(Arc<Stored>),
    /// A copy from or to memory of the host.
    Copy(Box<Copy3d>),
    Call(HostParameters),
    /// Waits for an event.
    Wait(Handle),
    /// Records an event.
    Record(Handle),
    /// Maps memory of the graph at this address.
    Allocate(u64),
    Free(u64),
}

/// A sequence that the device has stored, until the last launch that uses it was submitted.
pub(crate) struct Stored {
    pub(crate) id: SequenceId,
    context: Weak<Context>,
}

/// Where a piece of a node is.
enum Place {
    Device(Arc<Stored>, u32),
    Step(usize),
}

/// The steps of a launch, with the places of all nodes.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) steps: Arc<Vec<Step>>,
    nodes: BTreeMap<Handle, (Vec<Piece>, Vec<Place>)>,
}

impl Stored {
    fn new(context: &Arc<Context>, operations: &[Operation]) -> Result<Arc<Self>, Status> {
        if !context.add_sequence(MAX_SEQUENCES) {
            log::line(&format!(
                "too many graphs in this context: their operations form more than {MAX_SEQUENCES} sequences. Destroy executable graphs or merge \
                 host steps"
            ));
            return Err(Status::OUT_OF_MEMORY);
        }
        let stored = Arc::new(Self {
            id: SequenceId(new_handle().0),
            context: Arc::downgrade(context),
        });
        let mut rest = operations;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |operation: &&Operation| {
                bytes += operation.stored_bytes();
                bytes <= MESSAGE_BYTES
            };
            let (message, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            context.submit(Operation::Extend {
                sequence: stored.id,
                operations: message.to_vec(),
            })?;
            rest = after;
        }
        Ok(stored)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if let Some(context) = self.context.upgrade() {
            // Refused only after a fault, when nothing is replayed any more.
            let _ = context.submit(Operation::Erase(self.id));
            // Afterwards, so that another thread does not store a sequence too many before.
            context.remove_sequence();
        }
    }
}

/// Bytes with which the device counts operations.
pub(crate) fn charge(pieces: &[(Handle, Vec<Piece>)]) -> u64 {
    let operations = pieces.iter().flat_map(|(_, pieces)| pieces).filter_map(|piece| match piece {
        Piece::Device(operation) => Some(operation.stored_bytes()),
        Piece::Host(_) => None,
    });
    operations.sum()
}

impl Program {
    /// Stores the operations of nodes, which are in the order of their execution.
    pub(crate) fn store(context: &Arc<Context>, nodes: Vec<(Handle, Vec<Piece>)>) -> Result<Self, Status> {
        let mut program = Self::default();
        let mut steps = Vec::new();
        let mut run: Vec<(Handle, Operation)> = Vec::new();
        let pieces = nodes.iter().flat_map(|(_, pieces)| pieces);
        let count = pieces.filter(|piece| matches!(piece, Piece::Device(_))).count();
        if count > MAX_SEQUENCE_OPERATIONS {
            log::line(&format!(
                "a graph of {count} operations exceeds the limit of {MAX_SEQUENCE_OPERATIONS}"
            ));
            return Err(Status::OUT_OF_MEMORY);
        }
        for (handle, pieces) in &nodes {
            program.nodes.insert(*handle, (pieces.clone(), Vec::new()));
            for piece in pieces {
                match piece {
                    Piece::Device(operation) => run.push((*handle, operation.clone())),
                    Piece::Host(step) => {
                        program.end_run(context, &mut run, &mut steps)?;
                        program.note(*handle, Place::Step(steps.len()));
                        steps.push(step.clone());
                    }
                }
            }
        }
        program.end_run(context, &mut run, &mut steps)?;
        program.steps = Arc::new(steps);
        Ok(program)
    }

    fn end_run(&mut self, context: &Arc<Context>, run: &mut Vec<(Handle, Operation)>, steps: &mut Vec<Step>) -> Result<(), Status> {
        let (handles, operations): (Vec<Handle>, Vec<Operation>) = std::mem::take(run).into_iter().unzip();
        if operations.is_empty() {
            return Ok(());
        }
        let stored = Stored::new(context, &operations)?;
        for (handle, index) in handles.into_iter().zip(0..) {
            self.note(handle, Place::Device(Arc::clone(&stored), index));
        }
        steps.push(Step::Replay(stored));
        Ok(())
    }

    fn note(&mut self, handle: Handle, place: Place) {
        if let Some((_, places)) = self.nodes.get_mut(&handle) {
            places.push(place);
        }
    }

    /// Whether new work of nodes takes the places of the old one.
    pub(crate) fn has_place_for(&self, changes: &[(Handle, Vec<Piece>)]) -> bool {
        let fits = |(old, new): (&Piece, &Piece)| match (old, new) {
            (Piece::Device(old), Piece::Device(new)) => {
                std::mem::discriminant(old) == std::mem::discriminant(new) && old.payload() >= new.payload()
            }
            (Piece::Host(_), Piece::Host(_)) => true,
            _ => false,
        };
        changes.iter().all(|(handle, new)| {
            let old = self.nodes.get(handle).map(|(pieces, _)| pieces);
            old.is_some_and(|old| old.len() == new.len() && old.iter().zip(new).all(fits))
        })
    }

    /// Replaces the work of nodes, for which there [must be places](Self::has_place_for). Refused only after a fault, when nothing is
    /// launched any more.
    pub(crate) fn amend(&mut self, context: &Arc<Context>, changes: Vec<(Handle, Vec<Piece>)>) -> Result<(), Status> {
        for (handle, new) in changes {
            let Some((old, places)) = self.nodes.get_mut(&handle) else {
                continue;
            };
            for ((old, new), place) in old.iter_mut().zip(new).zip(places) {
                match (&*old, &new, place) {
                    (Piece::Device(before), Piece::Device(after), Place::Device(stored, index)) if before != after => {
                        context.submit(Operation::Amend {
                            sequence: stored.id,
                            index: *index,
                            operations: vec![after.clone()],
                        })?;
                    }
                    (_, Piece::Host(step), Place::Step(index)) => Arc::make_mut(&mut self.steps)[*index] = step.clone(),
                    _ => {}
                }
                *old = new;
            }
        }
        Ok(())
    }

    /// Addresses of memory that a launch maps.
    pub(crate) fn allocations(&self) -> HashSet<u64> {
        let addresses = self.steps.iter().filter_map(|step| match step {
            Step::Allocate(address) => Some(*address),
            _ => None,
        });
        addresses.collect()
    }
}
