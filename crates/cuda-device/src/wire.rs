//! Operations, descriptions and failures as messages of the session stream ([`sahasra_wire::cuda`]).

use bytes::{Bytes, BytesMut};
use prost::{DecodeError, Message};
use sahasra_wire::cuda::{self, operation::Kind};
use sahasra_wire::session::FailureCode;

use crate::{
    Extent, Failure, FailureKind, FunctionDescription, LaunchRequest, LoadFailure, MAX_SEQUENCE_OPERATIONS, ModuleDescription, ModuleId,
    Operation, ParameterPlace, Properties, Region, SequenceId, VariableDescription,
};

/// Appends an operation to the payload of a [`cuda::Batch`].
pub fn encode(operation: Operation, into: &mut BytesMut) {
    let message = cuda::Operation {
        kind: Some(kind(operation)),
    };
    message.encode_length_delimited(into).expect("the buffer grows");
}

/// Removes and returns the first operation of the payload of a [`cuda::Batch`], or `None` at its end. The operation shares the payload's
/// memory.
///
/// # Errors
/// When the payload is no sequence of operations.
pub fn decode(payload: &mut Bytes) -> Result<Option<Operation>, DecodeError> {
    if payload.is_empty() {
        return Ok(None);
    }
    let message = cuda::Operation::decode_length_delimited(payload)?;
    match message.kind {
        Some(kind) => operation(kind).map(Some),
        None => Err(invalid("an operation of an unknown kind")),
    }
}

#[expect(deprecated, reason = "prost has no other way to make this error")]
fn invalid(message: &'static str) -> DecodeError {
    DecodeError::new(message)
}

fn kind(operation: Operation) -> Kind {
    match operation {
        Operation::Map { address, bytes } => Kind::Map(cuda::Map { address, bytes }),
        Operation::Unmap { address } => Kind::Unmap(address),
        Operation::Write { to, extent, bytes } => Kind::Write(cuda::WriteInline {
            to: to.into(),
            extent: extent.into(),
            bytes,
        }),
        Operation::Copy { from, to, extent } => Kind::Copy(cuda::Copy {
            from: from.into(),
            to: to.into(),
            extent: extent.into(),
        }),
        Operation::Fill {
            to,
            extent,
            value,
            element_bytes,
        } => Kind::Fill(cuda::Fill {
            to: to.into(),
            extent: extent.into(),
            value,
            element_bytes: element_bytes.into(),
        }),
        Operation::Launch(launch) => {
            let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
            Kind::Launch(cuda::Launch {
                module: launch.module.0,
                function: launch.function,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                dynamic_shared_bytes: launch.dynamic_shared_bytes,
                stack_bytes: launch.stack_bytes,
                cooperative: launch.cooperative,
                parameters: launch.parameters,
            })
        }
        Operation::Mark(mark) => Kind::Mark(mark),
        Operation::Unload(module) => Kind::Unload(module.0),
        Operation::LimitHeap(bytes) => Kind::LimitHeap(bytes),
        Operation::Extend { sequence, operations } => Kind::Extend(cuda::Extend {
            sequence: sequence.0,
            operations: messages(operations),
        }),
        Operation::Amend {
            sequence,
            index,
            operations,
        } => Kind::Amend(cuda::Amend {
            sequence: sequence.0,
            index,
            operations: messages(operations),
        }),
        Operation::Replay(sequence) => Kind::Replay(sequence.0),
        Operation::Erase(sequence) => Kind::Erase(sequence.0),
    }
}

fn operation(kind: Kind) -> Result<Operation, DecodeError> {
    Ok(match kind {
        Kind::Map(map) => Operation::Map {
            address: map.address,
            bytes: map.bytes,
        },
        Kind::Unmap(address) => Operation::Unmap { address },
        Kind::Write(write) => Operation::Write {
            to: write.to.into(),
            extent: write.extent.into(),
            bytes: write.bytes,
        },
        Kind::Copy(copy) => Operation::Copy {
            from: copy.from.into(),
            to: copy.to.into(),
            extent: copy.extent.into(),
        },
        Kind::Fill(fill) => Operation::Fill {
            to: fill.to.into(),
            extent: fill.extent.into(),
            value: fill.value,
            element_bytes: u8::try_from(fill.element_bytes).map_err(|_| invalid("elements of more than 4 bytes"))?,
        },
        Kind::Launch(launch) => Operation::Launch(Box::new(LaunchRequest {
            module: ModuleId(launch.module),
            function: launch.function,
            grid: [launch.grid_x, launch.grid_y, launch.grid_z],
            block: [launch.block_x, launch.block_y, launch.block_z],
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
            stack_bytes: launch.stack_bytes,
            cooperative: launch.cooperative,
            parameters: launch.parameters,
        })),
        Kind::Mark(mark) => Operation::Mark(mark),
        Kind::Unload(module) => Operation::Unload(ModuleId(module)),
        Kind::LimitHeap(bytes) => Operation::LimitHeap(bytes),
        Kind::Extend(extend) => Operation::Extend {
            sequence: SequenceId(extend.sequence),
            operations: operations(extend.operations)?,
        },
        Kind::Amend(amend) => Operation::Amend {
            sequence: SequenceId(amend.sequence),
            index: amend.index,
            operations: operations(amend.operations)?,
        },
        Kind::Replay(sequence) => Operation::Replay(SequenceId(sequence)),
        Kind::Erase(sequence) => Operation::Erase(SequenceId(sequence)),
    })
}

fn messages(operations: Vec<Operation>) -> Vec<cuda::Operation> {
    let message = |operation| cuda::Operation {
        kind: Some(kind(operation)),
    };
    operations.into_iter().map(message).collect()
}

/// Operations of a sequence. Those that no sequence has are refused here, so that messages are not nested in each other, and more than a
/// sequence may have, before they wait in a queue.
fn operations(messages: Vec<cuda::Operation>) -> Result<Vec<Operation>, DecodeError> {
    if messages.len() > MAX_SEQUENCE_OPERATIONS {
        return Err(invalid("more operations than a sequence may have"));
    }
    let stored = |message: cuda::Operation| match message.kind {
        Some(kind @ (Kind::Copy(_) | Kind::Fill(_) | Kind::Launch(_))) => operation(kind),
        _ => Err(invalid("an operation that no sequence has")),
    };
    messages.into_iter().map(stored).collect()
}

impl From<&Properties> for cuda::DeviceProperties {
    fn from(properties: &Properties) -> Self {
        Self {
            name: properties.name.clone(),
            uuid: Bytes::copy_from_slice(&properties.uuid),
            first_address: properties.addresses.start,
            end_address: properties.addresses.end,
            multiprocessors: properties.multiprocessors,
            placed_from: properties.placed_from,
            attributes: properties.attributes.clone(),
            takes_machine_code: properties.takes_machine_code,
            reads_descriptors: properties.reads_descriptors,
            page_bytes: properties.page_bytes,
            stack_bytes: properties.stack_bytes,
        }
    }
}

impl Properties {
    /// Properties of the device of a session with this memory in bytes. Earlier executors have none of the newer fields.
    ///
    /// # Errors
    /// What is wrong with the message.
    pub fn of_session(message: cuda::DeviceProperties, memory_bytes: u64) -> Result<Self, &'static str> {
        let or = |value: u64, default| if value == 0 { default } else { value };
        Ok(Self {
            name: message.name,
            uuid: (message.uuid.as_ref().try_into()).map_err(|_| "the session's device has no identifier of 16 bytes")?,
            memory_bytes,
            addresses: message.first_address..message.end_address,
            placed_from: message.placed_from,
            multiprocessors: message.multiprocessors,
            shares_host_memory: false,
            attributes: message.attributes,
            takes_machine_code: message.takes_machine_code,
            reads_descriptors: message.reads_descriptors,
            page_bytes: or(message.page_bytes, crate::local::PAGE_BYTES),
            stack_bytes: or(message.stack_bytes, crate::local::STACK_BYTES),
        })
    }
}

impl From<Region> for cuda::Region {
    fn from(region: Region) -> Self {
        Self {
            address: region.address,
            row_pitch: region.row_pitch,
            slice_pitch: region.slice_pitch,
        }
    }
}

impl From<cuda::Region> for Region {
    fn from(region: cuda::Region) -> Self {
        Self {
            address: region.address,
            row_pitch: region.row_pitch,
            slice_pitch: region.slice_pitch,
        }
    }
}

impl From<Extent> for cuda::Extent {
    fn from(extent: Extent) -> Self {
        Self {
            width: extent.width,
            height: extent.height,
            depth: extent.depth,
        }
    }
}

impl From<cuda::Extent> for Extent {
    fn from(extent: cuda::Extent) -> Self {
        Self {
            width: extent.width,
            height: extent.height,
            depth: extent.depth,
        }
    }
}

impl ModuleDescription {
    /// The answer to the request with this number.
    pub fn into_message(self, request: u64) -> cuda::Loaded {
        let function = |function: FunctionDescription| cuda::Function {
            name: function.name,
            parameters: function
                .parameters
                .iter()
                .map(|place| cuda::Parameter {
                    offset: place.offset,
                    bytes: place.bytes,
                })
                .collect(),
            parameter_bytes: function.parameter_bytes,
            shared_bytes: function.shared_bytes,
            local_bytes: function.local_bytes,
            max_threads: function.max_threads,
            required_block: function.required_block.map(Vec::from).unwrap_or_default(),
            registers: function.registers.unwrap_or_default(),
            constant_bytes: function.constant_bytes,
            refusal: function.refusal.unwrap_or_default(),
        };
        let variable = |variable: VariableDescription| cuda::Variable {
            name: variable.name,
            address: variable.address,
            bytes: variable.bytes,
        };
        cuda::Loaded {
            request,
            functions: self.functions.into_iter().map(function).collect(),
            variables: self.variables.into_iter().map(variable).collect(),
        }
    }
}

impl From<cuda::Loaded> for ModuleDescription {
    fn from(loaded: cuda::Loaded) -> Self {
        let function = |function: cuda::Function| FunctionDescription {
            name: function.name,
            parameters: function
                .parameters
                .iter()
                .map(|place| ParameterPlace {
                    offset: place.offset,
                    bytes: place.bytes,
                })
                .collect(),
            parameter_bytes: function.parameter_bytes,
            shared_bytes: function.shared_bytes,
            local_bytes: function.local_bytes,
            max_threads: function.max_threads,
            required_block: function.required_block.try_into().ok(),
            registers: Some(function.registers).filter(|registers| *registers > 0),
            constant_bytes: function.constant_bytes,
            refusal: Some(function.refusal).filter(|reason| !reason.is_empty()),
        };
        let variable = |variable: cuda::Variable| VariableDescription {
            name: variable.name,
            address: variable.address,
            bytes: variable.bytes,
        };
        Self {
            functions: loaded.functions.into_iter().map(function).collect(),
            variables: loaded.variables.into_iter().map(variable).collect(),
        }
    }
}

impl From<FailureKind> for FailureCode {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::OutOfMemory => Self::OutOfMemory,
            FailureKind::IllegalAddress => Self::IllegalAddress,
            FailureKind::MisalignedAddress => Self::MisalignedAddress,
            FailureKind::Trap => Self::Trap,
            FailureKind::Assertion => Self::Assertion,
            FailureKind::StackOverflow => Self::StackOverflow,
            FailureKind::InvalidCall => Self::InvalidCall,
            FailureKind::Deadlock => Self::Deadlock,
            FailureKind::Launch => Self::InvalidLaunch,
            FailureKind::Protocol => Self::InvalidArgument,
            FailureKind::Lost => Self::Internal,
        }
    }
}

impl From<FailureCode> for FailureKind {
    fn from(code: FailureCode) -> Self {
        match code {
            FailureCode::OutOfMemory => Self::OutOfMemory,
            FailureCode::IllegalAddress => Self::IllegalAddress,
            FailureCode::MisalignedAddress => Self::MisalignedAddress,
            FailureCode::Trap => Self::Trap,
            FailureCode::Assertion => Self::Assertion,
            FailureCode::StackOverflow => Self::StackOverflow,
            FailureCode::InvalidCall => Self::InvalidCall,
            FailureCode::Deadlock => Self::Deadlock,
            FailureCode::InvalidLaunch => Self::Launch,
            FailureCode::InvalidArgument | FailureCode::Unsupported | FailureCode::Incompatible | FailureCode::CompileFailed => {
                Self::Protocol
            }
            FailureCode::Unspecified
            | FailureCode::ExecutionFailed
            | FailureCode::Malformed
            | FailureCode::Internal
            | FailureCode::Ended => Self::Lost,
        }
    }
}

impl LoadFailure {
    /// Code and message for the session stream.
    pub fn to_code(&self) -> (FailureCode, String) {
        let code = match self {
            Self::Invalid(_) => FailureCode::CompileFailed,
            Self::Unsupported(_) => FailureCode::Incompatible,
            Self::NoBinary(_) => FailureCode::Unsupported,
            Self::Failed(failure) => failure.kind.into(),
        };
        (code, self.to_string())
    }

    /// The failure that an executor reported.
    pub fn from_code(code: FailureCode, message: String) -> Self {
        match code {
            FailureCode::CompileFailed => Self::Invalid(message),
            FailureCode::Incompatible => Self::Unsupported(message),
            FailureCode::Unsupported => Self::NoBinary(message),
            code => Self::Failed(Failure::new(code.into(), message)),
        }
    }
}

#[cfg(test)]
mod tests;
