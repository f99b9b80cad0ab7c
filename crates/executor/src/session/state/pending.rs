//! Work in progress and waiting answers, in order: an answer is given after everything before it has ended.

use std::rc::Rc;

use bytes::Bytes;
use sahasra_wire::session::{self, Done, FailureCode, Synchronise, server_frame::Kind};

use super::{Epoch, Execution, Failure, State, Tensor};
use crate::session::answer::SessionAnswer;
use crate::session::engine::{Completion, Engine, Fault};

/// An operation in progress, or an answer that waits for those before it.
pub(super) enum Pending<E: Engine> {
    Execution(Rc<Execution<E>>),
    Download {
        request: u64,
        sequence: u64,
        name: u64,
        tensor: Rc<Tensor<E>>,
        transfer: E::Transfer,
        completion: Completion,
        bytes: u64,
    },
    Synchronise(Synchronise, Rc<Epoch>),
    Close(u64, Rc<Epoch>),
    SessionAnswer(Box<SessionAnswer>),
}

impl<E: Engine> Pending<E> {
    /// Whether this is an execution that has not ended.
    pub(super) fn runs(&self) -> bool {
        matches!(self, Self::Execution(execution) if execution.completion.outcome().is_none())
    }

    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Execution(_) => !self.runs(),
            Self::Download { completion, .. } => completion.outcome().is_some(),
            Self::Synchronise(..) | Self::Close(..) | Self::SessionAnswer(_) => true,
        }
    }
}

impl<E: Engine> State<E> {
    /// Number of executions that may still run when something can be settled: those behind the first waiting answer.
    pub(crate) fn running_behind(&self) -> u64 {
        if self.pending_answers == 0 {
            return 0;
        }
        let behind = self.pending.iter().skip_while(|pending| matches!(pending, Pending::Execution(_)));
        behind.filter(|pending| pending.runs()).count() as u64
    }

    pub(super) fn push(&mut self, pending: Pending<E>) {
        self.pending_answers += 1;
        self.pending.push_back(pending);
    }

    /// Adds an answer that is known already. It is given after waiting answers, but does not wait for mere executions.
    pub(super) fn answer(&mut self, answer: SessionAnswer) {
        if self.pending_answers == 0 {
            self.answers.push(answer);
        } else {
            self.push(Pending::SessionAnswer(Box::new(answer)));
        }
    }

    /// Finishes ended work and gives the answers that no longer wait.
    pub(crate) fn settle(&mut self) {
        if self.has_compiled() {
            self.finish_compilation();
        }
        while self.pending.front().is_some_and(Pending::is_ready)
            && let Some(pending) = self.pending.pop_front()
        {
            if !matches!(pending, Pending::Execution(_)) {
                self.pending_answers -= 1;
            }
            match pending {
                Pending::Execution(execution) => self.finish(&execution),
                Pending::Synchronise(Synchronise { request, only_unreported }, epoch) => {
                    let failure = if only_unreported { epoch.first_unreported() } else { epoch.first() };
                    let kind = failure.map_or(Kind::Done(Done { request }), |failure| failure.report(request));
                    self.answers.push(kind.into());
                }
                Pending::Close(request, epoch) => {
                    // This is the last answer, so a failure that the client does not know is reported now.
                    let kind = epoch
                        .first_unreported()
                        .map_or(Kind::Done(Done { request }), |failure| failure.report(request));
                    self.closed = Some(kind.into());
                }
                Pending::SessionAnswer(answer) => self.answers.push(*answer),
                Pending::Download {
                    request,
                    sequence,
                    name,
                    tensor,
                    transfer,
                    bytes,
                    ..
                } => {
                    self.pending_bytes -= bytes;
                    match self.engine.downloaded(transfer) {
                        Ok(data) => {
                            let data = self.watched(&tensor, data);
                            self.send(request, &tensor, &data);
                        }
                        Err(fault) => {
                            self.note(&fault);
                            let own = || Failure::new(sequence, format!("download of tensor {name}"), fault);
                            let failure = tensor.failure().cloned().unwrap_or_else(own);
                            self.answers.push(failure.report(request).into());
                        }
                    }
                }
            }
        }
    }

    fn send(&mut self, request: u64, tensor: &Tensor<E>, data: &Bytes) {
        let head = session::Tensor {
            request,
            element_type: tensor.shape.element_type.name().to_owned(),
            dimensions: tensor.shape.dimensions.clone(),
            bytes: data.len() as u64,
        };
        self.answers.extend(SessionAnswer::array(head, data));
    }

    /// Waits for the oldest unfinished execution. Returns whether there was one.
    pub(super) fn finish_oldest(&mut self) -> bool {
        let oldest = self.pending.iter().find_map(|pending| match pending {
            Pending::Execution(execution) if !execution.is_finished.get() => Some(Rc::clone(execution)),
            _ => None,
        });
        let Some(execution) = oldest else {
            return false;
        };
        execution.completion.wait();
        self.finish(&execution);
        true
    }

    /// Records the end of an execution and its failure. Executions before it are finished already.
    fn finish(&mut self, execution: &Rc<Execution<E>>) {
        if execution.is_finished.replace(true) {
            return;
        }
        self.under_way -= 1;
        self.temporaries -= execution.temporaries;
        let arguments = execution.arguments.take();
        let Some(Err(fault)) = execution.completion.outcome() else {
            return;
        };
        let fault = Fault {
            code: match fault.code {
                FailureCode::Unspecified => FailureCode::ExecutionFailed,
                code => code,
            },
            message: fault.message.clone(),
        };
        let earlier = arguments.iter().find_map(|tensor| tensor.failure().cloned());
        let failure = earlier.unwrap_or_else(|| {
            self.note(&fault);
            let failure = Failure::new(execution.sequence, format!("execute {}", execution.name), fault);
            execution.epoch.record(&failure);
            failure
        });
        // Nothing else sets the failure, and this runs once.
        let _ = execution.failure.set(failure);
    }
}
