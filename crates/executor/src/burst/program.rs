//! A run's program in an executor, in three parts: [`Code`] needs no device, [`Prepared`] lies on the device and is shared by all chunks,
//! and [`Frame`] is the memory of one chunk among those that run concurrently.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use sahasra_parameters::Scalar;
use sahasra_parameters::spec::Chunks;
use sahasra_ptx::Cancel;
use sahasra_wire::burst::{FailureCode, Input, Program, argument::Kind};

use crate::device::{Arguments, Device, DeviceError, LaunchShape, rounded_bytes};

/// Size of a pointer argument in bytes.
const ADDRESS_BYTES: usize = 8;

/// Failure of a chunk or of a whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub code: FailureCode,
    pub message: String,
    /// Whether the context is poisoned, so that the process must be replaced.
    pub poisoned: bool,
}

impl Failed {
    /// Failure that leaves the process intact.
    pub(crate) fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: sahasra_executor_protocol::burst::bounded_message(message.into()),
            poisoned: false,
        }
    }

    fn of_parameter(message: String) -> Self {
        Self::new(FailureCode::ParameterFailed, message)
    }
}

impl From<DeviceError> for Failed {
    fn from(error: DeviceError) -> Self {
        Self {
            poisoned: error.is_poisoned(),
            ..Self::new(error.code(), error.to_string())
        }
    }
}

/// Argument of the kernel, with the source of its value.
#[derive(Debug)]
enum Argument {
    Output(usize),
    /// Address of the input with this index, to which each chunk copies its part.
    Input(usize, Input),
    /// Address of the constant with this index and content.
    Constant(usize, Bytes),
    /// Value that all chunks share.
    Scalar(Bytes),
    /// Parameter, by its index among the evaluated values.
    Parameter(usize),
    Index,
}

/// A program as it was received, before a device has loaded it.
#[derive(Debug)]
pub(crate) struct Code {
    ptx: Bytes,
    entry: String,
    pub timeout: Duration,
    slice_bytes: u64,
    formula: sahasra_parameters::Program,
    shape: LaunchShape,
    arguments: Vec<Argument>,
    /// Sizes of the arguments, with zeroed values.
    layout: Arguments,
    /// Size of each output in bytes.
    outputs: Vec<u64>,
    /// Size of one chunk's part of each input, in bytes.
    inputs: Vec<u64>,
    /// Size of each constant in bytes.
    constants: Vec<u64>,
}

impl Code {
    /// Decodes and checks the program, and compiles its formulas.
    ///
    /// # Errors
    /// `LoadFailed`, `LaunchFailed` or `ParameterFailed`, which then applies to all chunks.
    pub(crate) fn new(encoded: &[u8]) -> Result<Self, Failed> {
        let program =
            Program::decode(encoded).map_err(|error| Failed::new(FailureCode::LoadFailed, format!("invalid program: {error}")))?;
        let chunks: Chunks =
            serde_json::from_slice(&program.chunks_json).map_err(|error| Failed::of_parameter(format!("invalid chunks: {error}")))?;
        let formula = sahasra_parameters::Program::compile(&chunks).map_err(|error| Failed::of_parameter(error.to_string()))?;
        let three = |name: &str, sizes: &[u32]| {
            <[u32; 3]>::try_from(sizes).map_err(|_| Failed::new(FailureCode::LaunchFailed, format!("invalid {name}: expected three sizes")))
        };
        let shape = LaunchShape {
            grid: three("grid", &program.grid)?,
            block: three("block", &program.block)?,
            dynamic_shared_bytes: program.dynamic_shared_bytes,
        };
        let (mut outputs, mut inputs, mut constants) = (Vec::new(), Vec::new(), Vec::new());
        let timeout = program.chunk_timeout();
        let mut arguments = Vec::with_capacity(program.arguments.len());
        let mut sizes = Vec::with_capacity(program.arguments.len());
        for (place, argument) in program.arguments.into_iter().enumerate() {
            let invalid = |reason: &str| Failed::new(FailureCode::LaunchFailed, format!("invalid argument {place}: {reason}"));
            let (argument, size) = match argument.kind.ok_or_else(|| invalid("kind is not set"))? {
                Kind::OutputBytes(bytes) => {
                    outputs.push(bytes);
                    (Argument::Output(outputs.len() - 1), ADDRESS_BYTES)
                }
                Kind::Input(input) => {
                    inputs.push(match input.bytes_per_chunk {
                        0 => input.bytes.len() as u64,
                        bytes => bytes,
                    });
                    (Argument::Input(inputs.len() - 1, input), ADDRESS_BYTES)
                }
                Kind::Constant(bytes) => {
                    constants.push(bytes.len() as u64);
                    (Argument::Constant(constants.len() - 1, bytes), ADDRESS_BYTES)
                }
                Kind::Scalar(bytes) => {
                    let size = bytes.len();
                    (Argument::Scalar(bytes), size)
                }
                Kind::ChunkIndexBytes(bytes) => (Argument::Index, bytes as usize),
                Kind::Parameter(name) => {
                    let missing = || Failed::of_parameter(format!("argument {place}: parameter {name} not found"));
                    let position = formula.position(&name).ok_or_else(missing)?;
                    (Argument::Parameter(position), formula.parameters()[position].type_.bytes())
                }
            };
            if !matches!(size, 1 | 2 | 4 | 8) {
                return Err(invalid(&format!("{size} bytes, expected 1, 2, 4 or 8")));
            }
            arguments.push(argument);
            sizes.push(size);
        }
        Ok(Self {
            ptx: program.ptx,
            entry: program.entry,
            timeout,
            slice_bytes: program.slice_bytes,
            formula,
            shape,
            arguments,
            layout: Arguments::new(&sizes),
            outputs,
            inputs,
            constants,
        })
    }

    /// PTX text of the program.
    ///
    /// # Errors
    /// `LoadFailed` if the bytes are not UTF-8.
    pub(crate) fn ptx(&self) -> Result<&str, Failed> {
        std::str::from_utf8(&self.ptx).map_err(|error| Failed::new(FailureCode::LoadFailed, format!("PTX is not UTF-8: {error}")))
    }

    /// Checks that one chunk fits a slice, including everything that chunks share: shared memory counts in full because a burst may hold
    /// only one slice.
    fn check_slice(&self, variables: u64) -> Result<(), Failed> {
        let (outputs, inputs, constants) = (
            rounded_bytes(&self.outputs),
            rounded_bytes(&self.inputs),
            rounded_bytes(&self.constants),
        );
        let needed = [outputs, inputs, constants, variables]
            .iter()
            .fold(0u64, |sum, part| sum.saturating_add(*part));
        if needed <= self.slice_bytes {
            return Ok(());
        }
        Err(Failed::new(
            FailureCode::SliceExceeded,
            format!(
                "a chunk needs {needed} bytes (outputs {outputs}, inputs {inputs}, constants {constants}, module variables {variables}), a slice has {}",
                self.slice_bytes
            ),
        ))
    }
}

pub(crate) struct Prepared<D: Device> {
    pub code: Arc<Code>,
    module: Arc<D::Module>,
    /// Kernel of the instance that all chunks share. `None` where one chunk could see state that another chunk left in the module: then
    /// each chunk gets an instance of its own.
    kernel: Option<D::Kernel>,
    constants: D::Area,
}

/// Memory and arguments of one chunk at a time; reused by the next chunk.
pub(crate) struct Frame<D: Device> {
    outputs: D::Area,
    inputs: D::Area,
    arguments: Arguments,
    parameters: Vec<Scalar>,
    parameter: Vec<u8>,
}

impl<D: Device> Prepared<D> {
    /// Prepares a program on the device.
    ///
    /// # Errors
    /// Failures that apply to all chunks.
    pub(crate) fn new(device: &D, stream: &mut D::Stream, code: Arc<Code>, module: &Arc<D::Module>) -> Result<Self, Failed> {
        // Check the size before allocating anything.
        code.check_slice(device.variable_bytes(module))?;
        let instance = Arc::new(device.instantiate(module, true)?);
        let kernel = device.kernel(&instance, &code.entry, code.shape, &code.layout)?;
        let kernel = (!device.keeps_state(&kernel)).then_some(kernel);
        drop(instance);
        let constants = device.allocate(&code.constants)?;
        for argument in &code.arguments {
            if let Argument::Constant(part, bytes) = argument {
                device.write(stream, &constants, *part, bytes)?;
            }
        }
        // Wait for the writes, so that the other streams see the constants.
        device.read(stream, &device.allocate(&[])?, &mut Vec::new())?;
        Ok(Self {
            code,
            module: Arc::clone(module),
            kernel,
            constants,
        })
    }

    /// Allocates memory for one chunk at a time.
    ///
    /// # Errors
    /// `OutOfDeviceMemory`.
    pub(crate) fn frame(&self, device: &D) -> Result<Frame<D>, Failed> {
        let outputs = device.allocate(&self.code.outputs)?;
        let inputs = device.allocate(&self.code.inputs)?;
        let mut arguments = self.code.layout.clone();
        for (place, argument) in self.code.arguments.iter().enumerate() {
            match argument {
                Argument::Output(part) => arguments.set(place, &device.address(&outputs, *part).to_le_bytes()),
                Argument::Input(part, _) => arguments.set(place, &device.address(&inputs, *part).to_le_bytes()),
                Argument::Constant(part, _) => arguments.set(place, &device.address(&self.constants, *part).to_le_bytes()),
                Argument::Scalar(bytes) => arguments.set(place, bytes),
                Argument::Parameter(_) | Argument::Index => {}
            }
        }
        Ok(Frame {
            outputs,
            inputs,
            arguments,
            parameters: Vec::new(),
            parameter: Vec::new(),
        })
    }

    /// Runs one chunk and appends its outputs to `into`. On an error `into` is unchanged.
    pub(crate) fn run(
        &self,
        device: &D,
        stream: &mut D::Stream,
        frame: &mut Frame<D>,
        index: u64,
        cancel: &Cancel,
        into: &mut Vec<u8>,
    ) -> Result<(), Failed> {
        let code = &*self.code;
        code.formula
            .evaluate(index, &mut frame.parameters)
            .map_err(|error| Failed::of_parameter(error.to_string()))?;
        for (place, argument) in code.arguments.iter().enumerate() {
            match argument {
                Argument::Parameter(position) => {
                    frame.parameter.clear();
                    frame.parameters[*position].write_le(&mut frame.parameter);
                    frame.arguments.set(place, &frame.parameter);
                }
                Argument::Index if frame.arguments.get(place).len() == 8 => frame.arguments.set(place, &index.to_le_bytes()),
                Argument::Index => {
                    let too_large = |_| Failed::of_parameter(format!("chunk index {index} does not fit the argument's 4 bytes"));
                    let index = u32::try_from(index).map_err(too_large)?;
                    frame.arguments.set(place, &index.to_le_bytes());
                }
                Argument::Input(part, input) => device.write(stream, &frame.inputs, *part, part_of(input, index)?)?,
                Argument::Output(_) | Argument::Constant(..) | Argument::Scalar(_) => {}
            }
        }
        if !code.outputs.is_empty() {
            device.zero(stream, &frame.outputs)?;
        }
        let own;
        let kernel = match &self.kernel {
            Some(kernel) => kernel,
            None => {
                let instance = Arc::new(device.instantiate(&self.module, true)?);
                own = device.kernel(&instance, &code.entry, code.shape, &code.layout)?;
                &own
            }
        };
        device.launch(stream, kernel, &frame.arguments, cancel)?;
        // Waits for the kernel before its instance is dropped.
        device.read(stream, &frame.outputs, into)?;
        Ok(())
    }
}

fn part_of(input: &Input, index: u64) -> Result<&[u8], Failed> {
    if input.bytes_per_chunk == 0 {
        return Ok(&input.bytes);
    }
    let start = index.checked_mul(input.bytes_per_chunk);
    let end = start.and_then(|start| start.checked_add(input.bytes_per_chunk));
    match (start, end) {
        (Some(start), Some(end)) if end <= input.bytes.len() as u64 => Ok(&input.bytes[start as usize..end as usize]),
        _ => Err(Failed::of_parameter(format!(
            "input of {} bytes has no part of {} bytes for chunk {index}",
            input.bytes.len(),
            input.bytes_per_chunk
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::CpuDevice;

    #[test]
    fn variables_beyond_the_slice_are_refused_before_they_are_allocated() {
        let ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 x[67108864];\n.visible .entry k() { ret; }\n";
        let program = |slice_bytes| Program {
            entry: "k".to_owned(),
            grid: vec![1; 3],
            block: vec![1; 3],
            chunks_json: br#"{"count": 1}"#.to_vec().into(),
            slice_bytes,
            ..Program::default()
        };
        // The device is too small for both programs: only a check before the allocation can fail with `SliceExceeded`.
        let device = CpuDevice::new(32 << 20, 1);
        let module = Arc::new(device.load(ptx).unwrap());
        let mut stream = device.stream().unwrap();
        for (slice_bytes, expected) in [(16 << 20, FailureCode::SliceExceeded), (64 << 20, FailureCode::OutOfDeviceMemory)] {
            let code = Arc::new(Code::new(&program(slice_bytes).encode_to_vec()).unwrap());
            let refused = Prepared::new(&device, &mut stream, code, &module).map(|_| ()).unwrap_err();
            assert_eq!(refused.code, expected, "{}", refused.message);
        }
    }
}
