//! Handles of a session's tensors and programs. Dropping the last clone of a handle deletes the tensor or program.

use std::{fmt, sync::Arc};

use sahasra_wire::session::{Download, client_frame::Kind};

use crate::{
    core::{Array, Core, Wanted},
    pending::Pending,
    runtime,
    state::{Shared, Waiting},
};

/// Argument of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A tensor. The kernel receives its address and may read and write it.
    Tensor(&'a Tensor),
    /// Little-endian bytes of a scalar, as many as the parameter's size.
    Scalar(&'a [u8]),
}

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
                // The program that was submitted last keeps its name for error messages.
                if state.run != Some(self.name) {
                    state.programs.remove(&self.name);
                }
            } else {
                state.core.delete_tensor(self.name);
            }
            quiet
        };
        // The task is woken for the first deletion only; later ones are sent along with it.
        if first {
            runtime::wake(&self.shared.wake);
        }
    }
}

/// A tensor on the session's device. It is freed when the last clone of the handle is dropped.
#[derive(Clone, Debug)]
pub struct Tensor(pub(super) Arc<Named>);

impl Tensor {
    /// Downloads the tensor. The answer contains the bytes as they are after all preceding operations.
    pub fn download(&self) -> Pending<Array> {
        self.download_expecting(None)
    }

    /// Downloads the tensor like [`Self::download`]. If `bytes` is given, an answer of another size is an error, raised before memory is
    /// allocated for it.
    pub fn download_expecting(&self, bytes: Option<u64>) -> Pending<Array> {
        let tensor = self.0.name;
        let kind = move |_: &mut Core, request| Kind::Download(Download { tensor, request });
        self.0.shared.ask(Wanted::Array(bytes), Waiting::Array, kind)
    }
}

/// A program in a session. It is deleted when the last clone of the handle is dropped; its results are not.
#[derive(Clone, Debug)]
pub struct Program(pub(super) Arc<Named>);
