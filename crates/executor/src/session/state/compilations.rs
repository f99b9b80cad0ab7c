//! Compilation of programs. It may take seconds: earlier requests are answered in the meantime, later operations wait.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use sahasra_pjrt::Shape;
use sahasra_wire::session::{Compile, FailureCode, Format, server_frame::Kind};

use super::memory::Charge;
use super::names::Named;
use super::{Failure, Program, State};
use crate::session::engine::{Compilation, Completion, Engine, Fault, compiled};

pub(super) struct Compiling<E: Engine> {
    sequence: u64,
    compile: Compile,
    compiling: E::Compiling,
    completion: Completion,
}

impl<E: Engine> State<E> {
    pub(super) fn compile(&mut self, sequence: u64, compile: Compile, code: &Bytes) {
        let (completion, done) = Completion::new(Arc::clone(&self.callbacks.download_ends));
        let started = self.check_context().and_then(|()| match compile.format() {
            Format::Unspecified => Err(Fault::new(FailureCode::InvalidArgument, "the format of the program is not set")),
            format => self.engine.compile(format, code, done),
        });
        match started {
            Ok(compiling) => {
                self.compiling = Some(Compiling {
                    sequence,
                    compile,
                    compiling,
                    completion,
                });
            }
            Err(fault) => self.compiled(sequence, &compile, Err(fault)),
        }
    }

    /// Removes the names of programs. If one of them has device memory, waits for the launched kernels that may use it.
    pub(super) fn free_programs(&mut self, sequence: u64, names: &[u64]) {
        let mut has_memory = false;
        for name in names {
            if let Some(Ok(program)) = self.programs.get(*name) {
                has_memory |= program.charge.bytes() > 0;
            }
            self.programs.remove(*name);
        }
        if has_memory {
            self.synchronise_launches(sequence);
        }
    }

    /// Whether operations must wait for a compilation.
    pub(crate) fn is_compiling(&self) -> bool {
        self.compiling.is_some()
    }

    pub(super) fn has_compiled(&self) -> bool {
        self.compiling
            .as_ref()
            .is_some_and(|compiling| compiling.completion.outcome().is_some())
    }

    /// Waits for the compilation in progress and names its program.
    pub(super) fn finish_compilation(&mut self) {
        let Some(Compiling {
            sequence,
            compile,
            compiling,
            completion,
        }) = self.compiling.take()
        else {
            return;
        };
        let outcome = completion.wait().clone();
        let made = outcome.and_then(|()| {
            let bytes = self.engine.program_bytes(&compiling);
            self.reserve(bytes, 0)?;
            let made = self.engine.program(compiling)?;
            Ok((made, self.account.charge(bytes)))
        });
        self.compiled(sequence, &compile, made);
    }

    fn compiled(&mut self, sequence: u64, compile: &Compile, made: Result<(Compilation<E::Program>, Charge), Fault>) {
        let outcome = match made {
            Ok((made, charge)) => {
                if compile.request != 0 {
                    let answer = compiled(compile.request, &made, self.limit_bytes, self.used());
                    self.answer(Kind::Compiled(answer).into());
                }
                let device_bytes = |shape: &Shape| self.engine.device_bytes(shape.host_bytes().unwrap_or(usize::MAX) as u64);
                Named::There(Rc::new(Program {
                    name: compile.name.as_str().into(),
                    output_bytes: made.properties.outputs.iter().map(device_bytes).collect(),
                    program: made.program,
                    properties: made.properties,
                    charge,
                }))
            }
            Err(fault) => {
                self.note(&fault);
                let operation = format!("compilation of {}", compile.name);
                Named::Failed(if compile.request == 0 {
                    self.fail(sequence, || operation, fault)
                } else {
                    let failure = Failure::new(sequence, operation, fault);
                    self.answer(failure.report(compile.request).into());
                    failure
                })
            }
        };
        self.free_programs(sequence, &[compile.program]);
        self.programs.set(compile.program, outcome);
        if compile.program == 0 {
            // Name 0 refers to nothing: let the engine drop the program.
            self.synchronise_launches(sequence);
        }
    }
}
