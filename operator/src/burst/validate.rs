//! Converts a spec and the objects that it refers to into a [`ValidBurst`], or returns the field that is wrong.
//!
//! Pure. A [`ValidBurst`] cannot be wrong, so the spec is not checked again afterwards.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use sahasra_crds::{
    burst_job::{
        AggregateChoice, ArgumentChoice, BurstJobSpec, KeptResults, ScalarType,
        aggregate::{UNKNOWN_OUTPUT, elements_message, most_elements},
        kernel::{CHUNK_INDEX_TYPE, MAX_OUTPUT_BYTES, output_message},
    },
    seconds,
    vram_lease::ORDERED_SLICES,
};
use sahasra_names::ClassName;
use sahasra_parameters::{
    NotOne, Program as Chunks, Scalar,
    launch::{MAX_BLOCK, MAX_GRID, MAX_THREADS, block_message},
};
use sahasra_service::backoff::Backoff;
use sahasra_wire::{
    burst::{Argument, Input, Program, Store, argument::Kind},
    milliseconds,
};
use sha2::{Digest, Sha256};

use super::{
    account::RetryPolicy,
    aggregate::Aggregator,
    checkpoint::MAX_INLINE_RESULT_BYTES,
    layout::Layout,
    observe::{Invalid, Observed},
};

mod program;

#[derive(Clone, Debug)]
pub struct ValidBurst {
    /// The program for agents, without the store.
    program: Program,
    pub chunks: Arc<Chunks>,
    /// Layout of the outputs that agents return for a chunk: all outputs, or only the aggregated output if results go to a store or are not
    /// all kept.
    pub layout: Layout,
    /// The aggregate before any result, with its output numbered within `layout`.
    pub aggregator: Aggregator,
    pub results: KeptResults,
    pub result_bytes: u64,
    pub total: u64,
    pub slice_bytes: u64,
    /// Class of the device; `None` matches any class.
    pub class: Option<ClassName>,
    /// Time for which slices outlive an operator that does not renew them.
    pub ttl: Duration,
    pub policy: RetryPolicy,
    pub chunk_timeout: Duration,
    pub max_failed: u64,
    /// The object store of `spec.output`, with the URL from the spec.
    pub store: Option<Store>,
}

fn refuse<T>(path: impl Into<String>, reason: &'static str, message: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid {
        path: path.into(),
        reason,
        message: message.into(),
    })
}

const INVALID: &str = "InvalidSpec";
/// Number of failed chunks for which `failed.csv` fits into a ConfigMap, whatever their indices and causes.
const MAX_LISTED_FAILED: i64 = 9_000;

/// Validates a spec and the objects that it refers to. Returns the first problem found.
pub fn validate(spec: &BurstJobSpec, observed: &Observed) -> Result<ValidBurst, Invalid> {
    let chunks = Chunks::compile(&spec.chunks).or_else(|error| refuse(error.path, "InvalidParameters", error.message))?;
    let total = chunks.count();
    let slice_bytes = spec.slice.vram.bytes();
    let slice_bytes = slice_bytes.or_else(|error| refuse("spec.slice.vram", INVALID, error.to_string()))?;
    if spec.slices.max.is_some_and(|max| max < spec.slices.min) {
        return refuse("spec.slices.min", INVALID, ORDERED_SLICES);
    }
    let (grid, block) = shape(spec)?;
    let choices = spec.kernel.args.iter().enumerate();
    let choices = choices.map(|(index, argument)| one(&format!("spec.kernel.args[{index}]"), argument.choice()));
    let choices: Vec<ArgumentChoice<'_>> = choices.collect::<Result<_, _>>()?;
    let arguments = arguments(&choices, observed, &chunks)?;
    let launch = program::Launch {
        entry: &spec.kernel.entry,
        block,
        arguments: &choices,
    };
    program::check(&observed.ptx, launch, &chunks, spec.slice.class.as_deref())?;
    check_memory(&arguments, total, slice_bytes)?;

    let whole = Layout::of(&spec.kernel);
    let output_bytes = whole.record_bytes() as u64;
    if output_bytes > MAX_OUTPUT_BYTES {
        let message = format!("{} (here {output_bytes} bytes)", output_message());
        return refuse("spec.kernel.args", "OutputTooLarge", message);
    }
    let aggregate = spec.aggregate.as_ref().map(|aggregate| aggregate.choice()).transpose();
    let aggregate = one("spec.aggregate", aggregate)?;
    check_aggregate(aggregate, &whole)?;
    let keeps_all = spec.results == KeptResults::All;
    let result_bytes = if keeps_all {
        total.saturating_mul(whole.record_bytes() as u64)
    } else {
        0
    };
    let store = spec.output.as_ref().map(|output| Store {
        url: output.store.url.clone(),
        options: observed.store_options.clone(),
    });
    check_results(spec, result_bytes)?;
    let aggregator = Aggregator::new(aggregate, &whole);
    let (layout, aggregator, aggregated_output) = if store.is_none() && keeps_all {
        (whole, aggregator, None)
    } else {
        let output = aggregator.output();
        let number = output.and_then(|output| u32::try_from(output).ok());
        (whole.only(output), aggregator.of_only_output(), number)
    };
    let chunk_timeout = seconds(spec.chunk_timeout_seconds);
    Ok(ValidBurst {
        program: Program {
            ptx: observed.ptx.clone(),
            digest: Bytes::copy_from_slice(&Sha256::digest(&observed.ptx)),
            entry: spec.kernel.entry.clone(),
            grid: grid.to_vec(),
            block: block.to_vec(),
            dynamic_shared_bytes: u32::try_from(spec.kernel.dynamic_shared_bytes).unwrap_or(u32::MAX),
            arguments: arguments.into_iter().map(|kind| Argument { kind: Some(kind) }).collect(),
            chunks_json: serde_json::to_vec(&spec.chunks).map(Bytes::from).unwrap_or_default(),
            slice_bytes,
            chunk_timeout_milliseconds: milliseconds(chunk_timeout),
            store: None,
            aggregated_output,
            aggregate_only: !keeps_all,
        },
        chunks: Arc::new(chunks),
        layout,
        aggregator,
        results: spec.results,
        result_bytes,
        total,
        slice_bytes,
        class: spec.slice.class.as_ref().map(ClassName::from),
        ttl: spec.lease.ttl(),
        policy: RetryPolicy {
            max_retries: u32::try_from(spec.retry_policy.max_retries).unwrap_or_default(),
            backoff: Backoff {
                first: seconds(spec.retry_policy.initial_backoff_seconds),
                longest: seconds(spec.retry_policy.max_backoff_seconds),
            },
        },
        chunk_timeout,
        max_failed: u64::try_from(spec.max_failed_chunks).unwrap_or_default(),
        store,
    })
}

/// The choice of a union at `path`.
fn one<T>(path: &str, choice: Result<T, NotOne>) -> Result<T, Invalid> {
    choice.or_else(|error| refuse(path, INVALID, error.to_string()))
}

/// Grid and block with three sizes each.
fn shape(spec: &BurstJobSpec) -> Result<([u32; 3], [u32; 3]), Invalid> {
    let three = |path: &str, sizes: &[i64], most: [i64; 3]| -> Result<[u32; 3], Invalid> {
        if sizes.len() > 3 {
            return refuse(path, INVALID, format!("{} sizes: expected at most three, x, y, z", sizes.len()));
        }
        let mut shape = [1; 3];
        for (axis, &size) in sizes.iter().enumerate() {
            if size < 1 || size > most[axis] {
                return refuse(
                    format!("{path}[{axis}]"),
                    INVALID,
                    format!("{size} is not between 1 and {}", most[axis]),
                );
            }
            shape[axis] = size as u32;
        }
        Ok(shape)
    };
    let grid = three("spec.kernel.grid", &spec.kernel.grid, MAX_GRID)?;
    let block = three("spec.kernel.block", &spec.kernel.block, MAX_BLOCK)?;
    let threads: i64 = block.iter().map(|size| i64::from(*size)).product();
    if threads > MAX_THREADS {
        return refuse("spec.kernel.block", INVALID, block_message());
    }
    Ok((grid, block))
}

fn arguments(choices: &[ArgumentChoice<'_>], observed: &Observed, chunks: &Chunks) -> Result<Vec<Kind>, Invalid> {
    let total = chunks.count();
    let mut arguments = Vec::with_capacity(choices.len());
    for (index, &choice) in choices.iter().enumerate() {
        let path = format!("spec.kernel.args[{index}]");
        let bytes = observed.inputs.get(index).cloned().unwrap_or_default();
        let kind = match choice {
            ArgumentChoice::Output(output) => {
                Kind::OutputBytes(u64::try_from(output.count).unwrap_or_default() * output.type_.bytes() as u64)
            }
            ArgumentChoice::Parameter(name) => {
                if chunks.position(name).is_none() {
                    let message = format!("{name:?} is not declared in spec.chunks.parameters or spec.chunks.product");
                    return refuse(format!("{path}.parameter"), "UnknownParameter", message);
                }
                Kind::Parameter(name.clone())
            }
            ArgumentChoice::Input(input) => {
                let bytes_per_chunk = u64::try_from(input.bytes_per_chunk.unwrap_or_default()).unwrap_or_default();
                let needed = bytes_per_chunk.saturating_mul(total);
                if bytes.is_empty() || needed > bytes.len() as u64 {
                    let message = format!(
                        "{} bytes where {} are required: provide bytesPerChunk bytes for each chunk, or lower bytesPerChunk",
                        bytes.len(),
                        needed.max(1)
                    );
                    return refuse(format!("{path}.input"), "InputTooShort", message);
                }
                Kind::Input(Input { bytes, bytes_per_chunk })
            }
            ArgumentChoice::Constant(_) => {
                if bytes.is_empty() {
                    return refuse(format!("{path}.constant"), "InputTooShort", "no bytes: expected at least one");
                }
                Kind::Constant(bytes)
            }
            ArgumentChoice::ChunkIndex(chunk_index) => match chunk_index.type_ {
                ScalarType::U32 | ScalarType::S32 | ScalarType::U64 | ScalarType::S64 => {
                    Kind::ChunkIndexBytes(chunk_index.type_.bytes() as u32)
                }
                ScalarType::U8 | ScalarType::F32 | ScalarType::F64 => {
                    return refuse(format!("{path}.chunkIndex.type"), INVALID, CHUNK_INDEX_TYPE);
                }
            },
            ArgumentChoice::Scalar(scalar) => match Scalar::from_f64(scalar.type_, scalar.value) {
                Some(value) => {
                    let mut bytes = Vec::new();
                    value.write_le(&mut bytes);
                    Kind::Scalar(bytes.into())
                }
                None => {
                    let message = format!("{} is not representable in the type", scalar.value);
                    return refuse(format!("{path}.scalar.value"), INVALID, message);
                }
            },
        };
        arguments.push(kind);
    }
    Ok(arguments)
}

/// Checks that the inputs and outputs of one chunk fit into a slice.
fn check_memory(arguments: &[Kind], total: u64, slice_bytes: u64) -> Result<(), Invalid> {
    let needed: u64 = arguments
        .iter()
        .map(|argument| match argument {
            Kind::OutputBytes(bytes) => *bytes,
            Kind::Input(input) if input.bytes_per_chunk > 0 => input.bytes_per_chunk,
            Kind::Input(input) => input.bytes.len() as u64,
            Kind::Constant(bytes) => bytes.len() as u64,
            Kind::Parameter(_) | Kind::ChunkIndexBytes(_) | Kind::Scalar(_) => 0,
        })
        .sum();
    if needed > slice_bytes {
        let message = format!(
            "outputs, inputs and constants of a chunk take {needed} bytes, a slice has {slice_bytes}: raise it to at least {}Mi",
            needed.div_ceil(1 << 20)
        );
        return refuse("spec.slice.vram", "SliceTooSmall", message);
    }
    if total == 0 {
        return refuse("spec.chunks", INVALID, "no chunks");
    }
    Ok(())
}

fn check_aggregate(aggregate: Option<AggregateChoice<'_>>, layout: &Layout) -> Result<(), Invalid> {
    let Some((name, output)) = aggregate.and_then(|choice| Some((choice.name(), choice.output()?))) else {
        return Ok(());
    };
    let path = format!("spec.aggregate.{name}.output");
    let found = usize::try_from(output).ok().and_then(|output| layout.outputs().get(output));
    let Some(found) = found else {
        return refuse(path, "UnknownOutput", UNKNOWN_OUTPUT);
    };
    if let Some(most) = most_elements(name).filter(|most| found.count > *most) {
        return refuse(path, INVALID, elements_message(name, most));
    }
    Ok(())
}

/// Checks that the results fit into a ConfigMap if there is no store.
fn check_results(spec: &BurstJobSpec, result_bytes: u64) -> Result<(), Invalid> {
    if spec.output.is_some() {
        return Ok(());
    }
    if result_bytes > MAX_INLINE_RESULT_BYTES {
        return refuse(
            "spec.output",
            "ResultsTooLarge",
            format!(
                "the results take {result_bytes} bytes in all, exceeding the {MAX_INLINE_RESULT_BYTES} of a ConfigMap: set output.store, \
                 or results: None"
            ),
        );
    }
    if spec.results == KeptResults::Failed && spec.max_failed_chunks > MAX_LISTED_FAILED {
        let message = format!(
            "results: Failed lists the failed chunks in a ConfigMap, at most {MAX_LISTED_FAILED}, and maxFailedChunks allows {}: set \
             output.store, or lower maxFailedChunks",
            spec.max_failed_chunks
        );
        return refuse("spec.output", "ResultsTooLarge", message);
    }
    Ok(())
}

impl ValidBurst {
    /// The program for an agent, which writes results to `store` if there is one.
    pub fn program(&self, store: Option<Store>) -> Program {
        Program {
            store,
            ..self.program.clone()
        }
    }

    /// Digest of the PTX, as `sha256:` and hexadecimal digits.
    pub fn digest(&self) -> String {
        format!("sha256:{}", hex::encode(&self.program.digest))
    }

    pub fn parameters(&self, index: u64) -> BTreeMap<String, Scalar> {
        let mut values = Vec::new();
        if self.chunks.evaluate(index, &mut values).is_err() {
            return BTreeMap::new();
        }
        let names = self.chunks.parameters().iter().map(|parameter| parameter.name.clone());
        names.zip(values).collect()
    }
}

#[cfg(test)]
mod tests;
