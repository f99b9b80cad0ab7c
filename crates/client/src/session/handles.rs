//! Tensors and programs of a session, as a caller holds them: the last clone that is dropped deletes what it names.

use std::{fmt, sync::Arc};

use sahasra_wire::session::{Download, client_frame::Kind};

use super::shared::{Shared, Waiting};
use crate::{
    core::{Array, Core, Wanted},
    pending::Pending,
    runtime,
};

/// One argument of a launch.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// The address of a tensor, which the kernel may read and write.
    Tensor(&'a Tensor),
    /// Little-endian bytes of a scalar, as many as the parameter has.
    Scalar(&'a [u8]),
}

/// What the client named in the session.
pub(super) struct Named {
    pub(super) name: u64,
    pub(super) program: bool,
    pub(super) shared: Arc<Shared>,
}

impl fmt::Debug for Named {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.name)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let first = {
            let mut state = self.shared.lock();
            if state.ended.is_some() || state.closing.is_some() {
                return;
            }
            let quiet = !state.core.has_only_deleted();
            if self.program {
                state.core.delete_program(self.name);
                // The last one is named still where something goes wrong with it.
                if state.run != Some(self.name) {
                    state.programs.remove(&self.name);
                }
            } else {
                state.core.delete_tensor(self.name);
            }
            quiet
        };
        // Later ones go with the first.
        if first {
            runtime::wake(&self.shared.wake);
        }
    }
}

/// A tensor on the session's device. It is freed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Tensor(pub(super) Arc<Named>);

impl Tensor {
    /// Its bytes, when everything before has happened.
    pub fn download(&self) -> Pending<Array> {
        self.download_expecting(None)
    }

    /// As [`Self::download`]; an answer of another size is an error before any memory is taken for it.
    pub fn download_expecting(&self, bytes: Option<u64>) -> Pending<Array> {
        let tensor = self.0.name;
        let kind = move |_: &mut Core, request| Kind::Download(Download { tensor, request });
        self.0.shared.ask(Wanted::Array(bytes), Waiting::Array, kind)
    }
}

/// A program in a session. It is forgotten when the last clone is dropped; results are not.
#[derive(Clone, Debug)]
pub struct Program(pub(super) Arc<Named>);
