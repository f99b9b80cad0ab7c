//! Destination of the outputs of successful chunks.

use sahasra_wire::burst::{Program, Store};

/// Destination of the outputs of successful chunks. It is no part of the program that executors see: a rotated secret or another aggregate
/// does not make another program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    /// Store to which outputs are written, if any.
    pub store: Option<Store>,
    /// Outputs that results carry to the coordinator.
    pub reported: Reported,
}

/// Which of a chunk's outputs its results carry to the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reported {
    #[default]
    Whole,
    /// One output, by its index among the chunk's outputs.
    Output(u32),
    Nothing,
}

impl Outputs {
    /// Removes from a program the fields that concern outputs, and returns them.
    pub(crate) fn take(program: &mut Program) -> Self {
        let aggregate_only = std::mem::take(&mut program.aggregate_only);
        let store = program.store.take().filter(|_| !aggregate_only);
        let reported = match program.aggregated_output.take() {
            _ if store.is_none() && !aggregate_only => Reported::Whole,
            Some(place) => Reported::Output(place),
            None => Reported::Nothing,
        };
        Self { store, reported }
    }
}
