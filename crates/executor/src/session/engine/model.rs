//! Engine for tests: tensors are bytes in host memory, and the test decides when executions end.
//!
//! A program consists of three words: a verb, the number of its results of 8 bytes, and its temporary bytes. `sum` fills result N with the
//! sum of all bytes of its arguments plus N; `fail` fails while it runs, `reject` before it starts; other verbs do not compile.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sahasra_pjrt::{CompiledMemory, ElementType, Shape};
use sahasra_wire::session::{FailureCode, Format, Launch};

use super::{Compilation, Completer, Description, Engine, Fault, Properties};

/// State of the engine that a test observes and controls.
#[derive(Default)]
pub(crate) struct Controls {
    /// Whether executions and downloads end only when the test calls [`release`].
    pub holds: bool,
    /// Whether compilations end only when the test calls [`release`].
    pub holds_compilations: bool,
    held: VecDeque<(Completer, Result<(), Fault>)>,
    /// Total size of all live tensors.
    pub live_bytes: u64,
    /// Number of compiled programs.
    pub compilations: usize,
}

impl Controls {
    /// Removes the newest outcome that was held back.
    pub(crate) fn take_newest(&mut self) -> Option<(Completer, Result<(), Fault>)> {
        self.held.pop_back()
    }

    /// Removes the oldest outcome that was held back.
    pub(crate) fn take_oldest(&mut self) -> Option<(Completer, Result<(), Fault>)> {
        self.held.pop_front()
    }
}

/// Shared handle of the [`Controls`].
pub(crate) type Shared = Rc<RefCell<Controls>>;

/// Completes the oldest outcome that was held back. Returns whether there was one.
pub(crate) fn release(controls: &Shared) -> bool {
    let oldest = controls.borrow_mut().take_oldest();
    let Some((done, outcome)) = oldest else {
        return false;
    };
    done.complete(outcome);
    true
}

/// The [engine](self) for tests.
#[derive(Default)]
pub(crate) struct ModelEngine {
    pub controls: Shared,
}

/// An array of the [`ModelEngine`].
pub(crate) struct ModelTensor {
    bytes: Arc<Bytes>,
    is_failed: bool,
    controls: Shared,
}

/// Shares a tensor's bytes without a copy.
struct View(Arc<Bytes>);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for ModelTensor {
    fn drop(&mut self) {
        self.controls.borrow_mut().live_bytes -= self.bytes.len() as u64;
    }
}

/// A program of the [`ModelEngine`].
pub(crate) struct ModelProgram {
    verb: String,
    results: usize,
}

impl ModelEngine {
    fn tensor(&self, bytes: Bytes, is_failed: bool) -> ModelTensor {
        self.controls.borrow_mut().live_bytes += bytes.len() as u64;
        ModelTensor {
            bytes: Arc::new(bytes),
            is_failed,
            controls: Rc::clone(&self.controls),
        }
    }

    fn ends(&self, done: Completer, outcome: Result<(), Fault>) {
        if self.controls.borrow().holds {
            self.controls.borrow_mut().held.push_back((done, outcome));
        } else {
            done.complete(outcome);
        }
    }
}

fn broken() -> Fault {
    Fault::new(FailureCode::ExecutionFailed, "it broke")
}

impl Engine for ModelEngine {
    type Tensor = ModelTensor;
    type Program = ModelProgram;
    type Compiling = Compilation<ModelProgram>;
    type Transfer = Result<Arc<Bytes>, Fault>;

    fn description(&self) -> Description {
        Description::default()
    }

    fn device_bytes(&self, host_bytes: u64) -> u64 {
        host_bytes
    }

    fn stored_bytes(&self, tensor: &ModelTensor) -> u64 {
        tensor.bytes.len() as u64
    }

    fn upload(&mut self, shape: &Shape, data: Bytes) -> Result<ModelTensor, Fault> {
        if shape.element_type == ElementType::S4 {
            return Err(Fault::new(FailureCode::InvalidArgument, "s4 is not taken"));
        }
        Ok(self.tensor(data, false))
    }

    fn allocate(&mut self, shape: &Shape) -> Result<ModelTensor, Fault> {
        self.upload(shape, vec![0; shape.host_bytes().unwrap()].into())
    }

    fn compile(&mut self, _format: Format, code: &Bytes, done: Completer) -> Result<Compilation<ModelProgram>, Fault> {
        let words: Vec<&str> = std::str::from_utf8(code).unwrap().split(' ').collect();
        let ["sum" | "fail" | "reject", results, temporaries] = words[..] else {
            return Err(Fault::new(FailureCode::CompileFailed, "no such words"));
        };
        let result = Shape {
            element_type: ElementType::U8,
            dimensions: vec![8],
        };
        self.controls.borrow_mut().compilations += 1;
        let program = ModelProgram {
            verb: words[0].to_owned(),
            results: results.parse().unwrap(),
        };
        let bytes = 8 * program.results as u64;
        let properties = Properties {
            outputs: vec![result; program.results],
            memory: CompiledMemory {
                outputs: bytes,
                aliased: bytes,
                temporaries: temporaries.parse().unwrap(),
                ..CompiledMemory::default()
            },
            flops: Some(2.0),
        };
        if self.controls.borrow().holds_compilations {
            self.controls.borrow_mut().held.push_back((done, Ok(())));
        } else {
            done.complete(Ok(()));
        }
        Ok(Compilation {
            program,
            properties: Rc::new(properties),
            cached: false,
            took: Duration::ZERO,
        })
    }

    fn program(&mut self, compiling: Compilation<ModelProgram>) -> Result<Compilation<ModelProgram>, Fault> {
        Ok(compiling)
    }

    fn execute(
        &mut self,
        program: &ModelProgram,
        arguments: &[&ModelTensor],
        _kept: &[i64],
        done: Completer,
    ) -> Result<Vec<ModelTensor>, Fault> {
        if program.verb == "reject" {
            return Err(Fault::new(FailureCode::InvalidArgument, "not these arguments"));
        }
        let fails = program.verb == "fail" || arguments.iter().any(|argument| argument.is_failed);
        let bytes = arguments.iter().flat_map(|argument| argument.bytes.iter());
        let sum = bytes.fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        let result = |number: usize| self.tensor(vec![sum.wrapping_add(number as u8); 8].into(), fails);
        let results = (0..program.results).map(result).collect();
        self.ends(done, if fails { Err(broken()) } else { Ok(()) });
        Ok(results)
    }

    fn launch(&mut self, _program: &ModelProgram, launch: &Launch, _tensors: &[&ModelTensor]) -> Result<(), Fault> {
        if launch.entry == "fail" { Err(broken()) } else { Ok(()) }
    }

    fn synchronise(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn download(&mut self, tensor: &ModelTensor, _shape: &Shape, done: Completer) -> Result<Self::Transfer, Fault> {
        let outcome = if tensor.is_failed {
            Err(broken())
        } else {
            Ok(Arc::clone(&tensor.bytes))
        };
        self.ends(done, outcome.clone().map(|_| ()));
        Ok(outcome)
    }

    fn is_shared(&self, tensor: &ModelTensor) -> bool {
        Arc::strong_count(&tensor.bytes) > 1
    }

    fn downloaded(&mut self, transfer: Self::Transfer) -> Result<Bytes, Fault> {
        transfer.map(|bytes| Bytes::from_owner(View(bytes)))
    }
}
