//! The thread that drives a session's engine.

use std::sync::Arc;

use sahasra_wire::session::client_frame;

use super::answer::SessionAnswer;
use super::hub::{Hub, Input, Waiting};
use super::payload::Payload;
use super::state::Malformed;

/// Reports the hub, and runs the engine.
pub(super) fn drive<S: ClientState>(hub: Hub, report: impl FnOnce(Result<Arc<Hub>, String>), state: impl FnOnce(Arc<Hub>) -> S) -> ! {
    let hub = Arc::new(hub);
    let state = state(Arc::clone(&hub));
    report(Ok(Arc::clone(&hub)));
    work(&hub, state)
}

/// State of a client on an engine. One thread uses it: it passes the client's operations in order, and takes answers.
pub(super) trait ClientState {
    fn has_answers(&self) -> bool;

    /// Takes the answers for the client. The last answer is returned separately if the client has closed the session.
    fn take_answers(&mut self) -> (Vec<SessionAnswer>, Option<SessionAnswer>);

    /// Number of tensors or allocations, and bytes of device memory in use.
    fn stored(&self) -> (u64, u64);

    /// Reasons to wake the thread.
    fn waiting(&self) -> Waiting;

    /// Whether [`ClientState::settle`] would do anything.
    fn can_settle(&self) -> bool;

    /// Processes what has ended, and gives the answers that no longer wait.
    fn settle(&mut self);

    /// Frees everything and discards all answers.
    fn reset(&mut self);

    /// Carries out an operation.
    ///
    /// # Errors
    /// [`Malformed`]: the caller must report it to the client and call [`ClientState::reset`].
    fn operation(&mut self, sequence: u64, kind: client_frame::Kind, payload: Payload) -> Result<(), Malformed>;
}

/// Main loop of the engine's thread.
fn work<S: ClientState>(hub: &Hub, mut state: S) -> ! {
    let mut generation = 0;
    let mut stored = (0, 0);
    loop {
        if state.has_answers() {
            let (answers, last) = state.take_answers();
            hub.answer(generation, answers, last);
        }
        if stored != state.stored() {
            stored = state.stored();
            hub.status_page.set_stored(stored.0, stored.1);
        }
        match hub.next(state.waiting(), || state.can_settle()) {
            Input::Settle => state.settle(),
            Input::Begin(next) => {
                state.reset();
                generation = next;
            }
            Input::Operation {
                sequence, kind, payload, ..
            } => {
                if let Err(malformed) = state.operation(sequence, kind, payload) {
                    hub.malformed_operation(generation, &malformed.to_string());
                }
            }
        }
    }
}
