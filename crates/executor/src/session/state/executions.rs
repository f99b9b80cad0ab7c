//! Executions of programs and launches of kernels.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use sahasra_wire::session::{Execute, FailureCode, Launch, argument};

use super::names::Named;
use super::pending::Pending;
use super::{Execution, Failure, Program, State, Tensor};
use crate::session::engine::{Completion, Engine, Fault};

/// Maximum number of executions in progress: enough to keep a device busy while the next ones are prepared.
const MAX_UNDER_WAY: usize = 64;

type Arguments<E> = Result<Vec<Rc<Tensor<E>>>, Rc<Failure>>;
/// Program and tensors of a kernel launch.
type Prepared<E> = Result<(Rc<Program<E>>, Vec<Rc<Tensor<E>>>), Rc<Failure>>;

impl<E: Engine> State<E> {
    /// The program with this name, or the failure because of which it cannot be used.
    fn program(&mut self, sequence: u64, name: u64, verb: &str) -> Result<Rc<Program<E>>, Rc<Failure>> {
        match self.programs.get(name) {
            Some(Ok(program)) => Ok(Rc::clone(program)),
            Some(Err(failure)) => Err(Rc::clone(failure)),
            None => {
                let fault = Fault::new(FailureCode::InvalidArgument, format!("program {name} not found"));
                Err(self.fail(sequence, || format!("{verb} of program {name}"), fault))
            }
        }
    }

    /// The tensors with these names, or the failure because of which one of them cannot be used.
    fn arguments(&mut self, sequence: u64, names: impl Iterator<Item = u64>, operation: impl FnOnce() -> String) -> Arguments<E> {
        let mut tensors = Vec::with_capacity(names.size_hint().0);
        for name in names {
            match self.tensors.get(name) {
                Some(Ok(tensor)) => match tensor.failure() {
                    None => tensors.push(Rc::clone(tensor)),
                    Some(failure) => return Err(Rc::clone(failure)),
                },
                Some(Err(failure)) => return Err(Rc::clone(failure)),
                None => {
                    let fault = Fault::new(
                        FailureCode::InvalidArgument,
                        format!("tensor {name} not found: it was never created, was deleted or was donated"),
                    );
                    return Err(self.fail(sequence, operation, fault));
                }
            }
        }
        Ok(tensors)
    }

    pub(super) fn execute(&mut self, sequence: u64, execute: &Execute) {
        if let Err(failure) = self.start(sequence, execute) {
            for name in &execute.outputs {
                self.tensors.set(*name, Named::Failed(Rc::clone(&failure)));
            }
        }
    }

    fn start(&mut self, sequence: u64, execute: &Execute) -> Result<(), Rc<Failure>> {
        let program = self.program(sequence, execute.program, "execution")?;
        let operation = || format!("execute {}", program.name);
        let arguments = self.arguments(sequence, execute.arguments.iter().copied(), operation)?;
        let prepared = self.prepare(&program, execute, &arguments);
        let kept = prepared.map_err(|fault| self.fail(sequence, operation, fault))?;
        let (completion, done) = Completion::new(Arc::clone(&self.callbacks.execution_ends));
        let arrays: Vec<&E::Tensor> = arguments.iter().map(|tensor| &tensor.array).collect();
        let shared: Vec<bool> = arrays.iter().map(|array| self.engine.is_shared(array)).collect();
        (self.callbacks.execution_begins)();
        let outputs = self.engine.execute(&program.program, &arrays, &kept, done);
        drop(arrays);
        let outputs = outputs.map_err(|fault| {
            self.note(&fault);
            self.fail(sequence, operation, fault)
        })?;
        for place in &execute.donated {
            // The index is in range, as `prepare` has checked. From here on the memory belongs to the results, unless a download still uses
            // it.
            if !shared[*place as usize] {
                arguments[*place as usize].charge.release();
            }
            self.tensors.remove(execute.arguments[*place as usize]);
        }
        let temporaries = program.properties.memory.temporaries;
        self.temporaries += temporaries;
        let execution = Rc::new(Execution {
            sequence,
            name: Rc::clone(&program.name),
            completion,
            epoch: Rc::clone(&self.epoch),
            arguments: RefCell::new(arguments),
            temporaries,
            failure: OnceCell::new(),
            is_finished: Cell::new(false),
        });
        for (place, array) in outputs.into_iter().enumerate() {
            let name = execute.outputs[place];
            let shape = program.properties.outputs[place].clone();
            let tensor = self.tensor(array, shape, Some(Rc::clone(&execution)));
            self.name_tensor(name, Ok(tensor));
        }
        self.under_way += 1;
        self.pending.push_back(Pending::Execution(execution));
        Ok(())
    }

    /// Checks what can be checked before a program starts. Returns the indices of the arguments that are not donated.
    fn prepare(&mut self, program: &Program<E>, execute: &Execute, arguments: &[Rc<Tensor<E>>]) -> Result<Vec<i64>, Fault> {
        self.check_context()?;
        let results = program.output_bytes.len();
        if execute.outputs.len() != results {
            let message = format!("the program has {results} results, {} are named", execute.outputs.len());
            return Err(Fault::new(FailureCode::InvalidArgument, message));
        }
        let mut is_donated = vec![false; arguments.len()];
        for place in &execute.donated {
            match is_donated.get_mut(*place as usize) {
                Some(donated) => *donated = true,
                None => {
                    let message = format!("donated argument {place} not found: {} arguments were passed", arguments.len());
                    return Err(Fault::new(FailureCode::InvalidArgument, message));
                }
            }
        }
        while self.under_way >= MAX_UNDER_WAY && self.finish_oldest() {}
        let places = || is_donated.iter().enumerate();
        let donated_bytes = places()
            .filter(|(place, donated)| **donated && !self.engine.is_shared(&arguments[*place].array))
            .map(|(place, _)| arguments[place].charge.bytes());
        let memory = program.properties.memory;
        let aliased = memory.aliased.min(donated_bytes.sum());
        let outputs: u64 = program.output_bytes.iter().sum();
        self.reserve(outputs.saturating_sub(aliased), memory.temporaries)?;
        Ok(places().filter(|(_, donated)| !**donated).map(|(place, _)| place as i64).collect())
    }

    pub(super) fn launch(&mut self, sequence: u64, launch: &Launch) {
        let operation = || format!("launch {}", launch.entry);
        let started = self.prepare_kernel(sequence, launch, operation);
        let (program, arguments) = match started {
            Ok(prepared) => prepared,
            Err(failure) => {
                // The client knows of the earlier failure already: report this launch, which had no effect, as a failure of its own.
                let failure = match failure.is_reported() {
                    true => self.fail(sequence, operation, failure.fault().clone()),
                    false => failure,
                };
                return self.leave_unchanged(launch, &failure);
            }
        };
        let arrays: Vec<&E::Tensor> = arguments.iter().map(|tensor| &tensor.array).collect();
        (self.callbacks.execution_begins)();
        let outcome = self.engine.launch(&program.program, launch, &arrays);
        (self.callbacks.execution_ends)();
        let Err(fault) = outcome else { return };
        self.note(&fault);
        let is_rejected = fault.code == FailureCode::InvalidArgument;
        let failure = self.fail(sequence, operation, fault);
        if is_rejected {
            return self.leave_unchanged(launch, &failure);
        }
        // It is unknown which of its tensors the kernel writes, so the content of all of them is undefined.
        for name in tensors_of(launch) {
            if let Some(Ok(_)) = self.tensors.get(name) {
                self.tensors.set(name, Named::Failed(Rc::clone(&failure)));
            }
        }
    }

    /// Keeps the content of the tensors that the kernel was given. The next use of one of them reports the failure.
    fn leave_unchanged(&mut self, launch: &Launch, failure: &Rc<Failure>) {
        for name in tensors_of(launch) {
            if let Some(Ok(tensor)) = self.tensors.get(name) {
                let tensor = Rc::clone(tensor);
                self.tensors.set(name, Named::Unchanged(tensor, Rc::clone(failure)));
            }
        }
    }

    fn prepare_kernel(&mut self, sequence: u64, launch: &Launch, operation: impl Fn() -> String) -> Prepared<E> {
        let program = self.program(sequence, launch.program, "launch")?;
        let arguments = self.arguments(sequence, tensors_of(launch), &operation)?;
        self.check_context().map_err(|fault| self.fail(sequence, operation, fault))?;
        Ok((program, arguments))
    }
}

/// Names of the tensors among a kernel's arguments.
fn tensors_of(launch: &Launch) -> impl Iterator<Item = u64> + '_ {
    launch.arguments.iter().filter_map(|argument| match argument.kind {
        Some(argument::Kind::Tensor(name)) => Some(name),
        _ => None,
    })
}
