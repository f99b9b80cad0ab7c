//! Converts a spec and the objects that it refers to into a [`ValidBurst`], or returns the field that is wrong.
//!
//! Pure. A [`ValidBurst`] cannot be wrong, so the spec is not checked again afterwards.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use sahasra_crds::burst_job::{Aggregate, Argument, BurstJobSpec, KeptResults, ScalarType, kernel::MAX_OUTPUT_BYTES};
use sahasra_parameters::{Program as Chunks, Scalar};
use sahasra_wire::burst::{Argument as WireArgument, Input, Program, Store, argument::Kind};
use sha2::{Digest, Sha256};

use super::{account::RetryPolicy, checkpoint::MAX_INLINE_RESULT_BYTES, layout::Layout, observe::Observed};

mod program;

/// A burst that can run.
#[derive(Clone, Debug)]
pub struct ValidBurst {
    /// The program for the agents, without the folder in the store.
    pub program: Program,
    /// Computes the parameters of any chunk.
    pub chunks: Arc<Chunks>,
    /// Layout of the outputs that agents return for a chunk: all outputs, or only the aggregated output if results go to a store or are not
    /// all kept.
    pub layout: Layout,
    /// The aggregate, with its output numbered within `layout`.
    pub aggregate: Option<Aggregate>,
    /// Which results are kept.
    pub results: KeptResults,
    /// Bytes of all results that are kept.
    pub result_bytes: u64,
    /// Number of chunks.
    pub total: u64,
    pub slice_bytes: u64,
    /// Class of the device; `None` matches any class.
    pub class: Option<String>,
    /// Time for which slices outlive an operator that does not renew them.
    pub ttl_milliseconds: u64,
    pub policy: RetryPolicy,
    /// Timeout of a chunk.
    pub chunk_timeout_milliseconds: u64,
    /// Maximum number of chunks that may fail.
    pub max_failed: u64,
    /// The object store of `spec.output`, with the URL from the spec.
    pub store: Option<Store>,
    /// Digest of the PTX, as `sha256:` and hexadecimal digits.
    pub digest: String,
}

/// A problem of a spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Invalid {
    /// Path of the field.
    pub path: String,
    /// Reason of the condition, in CamelCase.
    pub reason: &'static str,
    /// The problem and its remedy.
    pub message: String,
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
const MOST_LISTED_FAILED: i64 = 9_000;

/// Validates a spec and the objects that it refers to. Returns the first problem found.
pub fn validate(spec: &BurstJobSpec, observed: &Observed) -> Result<ValidBurst, Invalid> {
    let chunks = Chunks::compile(&spec.chunks).map_err(|error| Invalid {
        path: error.path,
        reason: "InvalidParameters",
        message: error.message,
    })?;
    let total = chunks.count();
    let slice_bytes = spec.slice.vram.bytes().map_err(|error| Invalid {
        path: "spec.slice.vram".into(),
        reason: INVALID,
        message: error.to_string(),
    })?;
    check_slices(spec)?;
    let (grid, block) = shape(spec)?;
    let arguments = arguments(spec, observed, &chunks)?;
    program::check(&observed.ptx, &spec.kernel, &chunks, spec.slice.class.as_deref())?;
    check_memory(&arguments, total, slice_bytes)?;

    let whole = Layout::of(&spec.kernel);
    let output_bytes = whole.record_bytes() as u64;
    if output_bytes > MAX_OUTPUT_BYTES {
        let message = format!(
            "the outputs of a chunk take {output_bytes} bytes, exceeding the limit of {MAX_OUTPUT_BYTES}: reduce the outputs of a chunk"
        );
        return refuse("spec.kernel.args", "OutputTooLarge", message);
    }
    check_aggregate(spec.aggregate.as_ref(), &whole)?;
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
    if store.is_none() && result_bytes > MAX_INLINE_RESULT_BYTES {
        return refuse(
            "spec.output",
            "ResultsTooLarge",
            format!(
                "the results take {result_bytes} bytes in all, exceeding the {MAX_INLINE_RESULT_BYTES} of a ConfigMap: set output.store, \
                 or results: None"
            ),
        );
    }
    if spec.results == KeptResults::Failed && store.is_none() && spec.max_failed_chunks > MOST_LISTED_FAILED {
        let message = format!(
            "results: Failed lists the failed chunks in a ConfigMap, at most {MOST_LISTED_FAILED}, and maxFailedChunks allows {}: set \
             output.store, or lower maxFailedChunks",
            spec.max_failed_chunks
        );
        return refuse("spec.output", "ResultsTooLarge", message);
    }
    let (layout, aggregate, aggregated_output) = match &store {
        None if keeps_all => (whole, spec.aggregate.clone(), None),
        _ => aggregated_alone(spec, &whole),
    };
    let digest = Sha256::digest(&observed.ptx);
    let seconds = |seconds: i64| u64::try_from(seconds).unwrap_or_default().saturating_mul(1000);
    Ok(ValidBurst {
        program: Program {
            ptx: observed.ptx.clone(),
            digest: Bytes::copy_from_slice(&digest),
            entry: spec.kernel.entry.clone(),
            grid,
            block,
            dynamic_shared_bytes: u32::try_from(spec.kernel.dynamic_shared_bytes).unwrap_or(u32::MAX),
            arguments,
            chunks_json: serde_json::to_vec(&spec.chunks).map(Bytes::from).unwrap_or_default(),
            slice_bytes,
            chunk_timeout_milliseconds: seconds(spec.chunk_timeout_seconds),
            store: None,
            aggregated_output,
            aggregate_only: !keeps_all,
        },
        chunks: Arc::new(chunks),
        layout,
        aggregate,
        results: spec.results,
        result_bytes,
        total,
        slice_bytes,
        class: spec.slice.class.clone(),
        ttl_milliseconds: seconds(spec.lease.ttl_seconds),
        policy: RetryPolicy {
            max_retries: u32::try_from(spec.retry_policy.max_retries).unwrap_or_default(),
            initial_backoff: seconds(spec.retry_policy.initial_backoff_seconds),
            max_backoff: seconds(spec.retry_policy.max_backoff_seconds),
        },
        chunk_timeout_milliseconds: seconds(spec.chunk_timeout_seconds),
        max_failed: u64::try_from(spec.max_failed_chunks).unwrap_or_default(),
        store,
        digest: format!("sha256:{}", hexadecimal(&digest)),
    })
}

fn check_slices(spec: &BurstJobSpec) -> Result<(), Invalid> {
    match spec.slices.max {
        Some(max) if max < spec.slices.min => refuse("spec.slices.min", INVALID, "min must not exceed max"),
        _ => Ok(()),
    }
}

/// Grid and block with three sizes each.
fn shape(spec: &BurstJobSpec) -> Result<(Vec<u32>, Vec<u32>), Invalid> {
    let three = |path: &str, sizes: &[i64], most: [i64; 3]| -> Result<Vec<u32>, Invalid> {
        if sizes.len() > 3 {
            return refuse(path, INVALID, format!("{} sizes: expected at most three, x, y, z", sizes.len()));
        }
        (0..3)
            .map(|axis| match sizes.get(axis).copied().unwrap_or(1) {
                size if size >= 1 && size <= most[axis] => Ok(size as u32),
                size => refuse(
                    format!("{path}[{axis}]"),
                    INVALID,
                    format!("{size} is not between 1 and {}", most[axis]),
                ),
            })
            .collect()
    };
    // CUDA C++ Programming Guide, technical specifications per compute capability: the same for all since 3.0.
    let grid = three("spec.kernel.grid", &spec.kernel.grid, [2_147_483_647, 65_535, 65_535])?;
    let block = three("spec.kernel.block", &spec.kernel.block, [1_024, 1_024, 64])?;
    let threads: u64 = block.iter().map(|size| u64::from(*size)).product();
    if threads > 1024 {
        return refuse("spec.kernel.block", INVALID, format!("{threads} threads: a block has at most 1024"));
    }
    Ok((grid, block))
}

fn arguments(spec: &BurstJobSpec, observed: &Observed, chunks: &Chunks) -> Result<Vec<WireArgument>, Invalid> {
    let total = chunks.count();
    let mut arguments = Vec::with_capacity(spec.kernel.args.len());
    for (index, argument) in spec.kernel.args.iter().enumerate() {
        let path = format!("spec.kernel.args[{index}]");
        let bytes = observed.inputs.get(index).cloned().unwrap_or_default();
        let kind = match argument {
            Argument { output: Some(output), .. } => {
                Kind::OutputBytes(u64::try_from(output.count).unwrap_or_default() * output.type_.bytes() as u64)
            }
            Argument { parameter: Some(name), .. } => {
                if chunks.position(name).is_none() {
                    let message = format!("{name:?} is not declared in spec.chunks.parameters or spec.chunks.product");
                    return refuse(format!("{path}.parameter"), "UnknownParameter", message);
                }
                Kind::Parameter(name.clone())
            }
            Argument { input: Some(input), .. } => {
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
            Argument { constant: Some(_), .. } => {
                if bytes.is_empty() {
                    return refuse(format!("{path}.constant"), "InputTooShort", "no bytes: expected at least one");
                }
                Kind::Constant(bytes)
            }
            Argument {
                chunk_index: Some(chunk_index),
                ..
            } => {
                let most = match chunk_index.type_ {
                    ScalarType::U32 | ScalarType::S32 | ScalarType::U64 | ScalarType::S64 => u64::MAX,
                    _ => 0,
                };
                if most == 0 {
                    return refuse(format!("{path}.chunkIndex.type"), INVALID, "a chunk index is u32, s32, u64 or s64");
                }
                Kind::ChunkIndexBytes(chunk_index.type_.bytes() as u32)
            }
            Argument { scalar: Some(scalar), .. } => match Scalar::from_f64(scalar.type_, scalar.value) {
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
            _ => {
                return refuse(
                    path,
                    INVALID,
                    "give exactly one of output, parameter, input, constant, chunkIndex, scalar",
                );
            }
        };
        arguments.push(WireArgument { kind: Some(kind) });
    }
    Ok(arguments)
}

/// Checks that the inputs and outputs of one chunk fit into a slice.
fn check_memory(arguments: &[WireArgument], total: u64, slice_bytes: u64) -> Result<(), Invalid> {
    let needed: u64 = arguments
        .iter()
        .map(|argument| match &argument.kind {
            Some(Kind::OutputBytes(bytes)) => *bytes,
            Some(Kind::Input(input)) if input.bytes_per_chunk > 0 => input.bytes_per_chunk,
            Some(Kind::Input(input)) => input.bytes.len() as u64,
            Some(Kind::Constant(bytes)) => bytes.len() as u64,
            _ => 0,
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

fn check_aggregate(aggregate: Option<&Aggregate>, layout: &Layout) -> Result<(), Invalid> {
    let Some(aggregate) = aggregate else { return Ok(()) };
    let numbers = [
        ("argmin", aggregate.argmin.as_ref().map(|selector| selector.output), 1),
        ("argmax", aggregate.argmax.as_ref().map(|selector| selector.output), 1),
        ("topK", aggregate.top_k.as_ref().map(|top| top.output), 1),
        ("sum", aggregate.sum.as_ref().map(|selector| selector.output), 256),
        ("mean", aggregate.mean.as_ref().map(|selector| selector.output), 256),
        ("concat", aggregate.concat.as_ref().map(|selector| selector.output), usize::MAX),
    ];
    let given = numbers.iter().filter(|(_, output, _)| output.is_some()).count() + usize::from(aggregate.none.is_some());
    if given != 1 {
        return refuse(
            "spec.aggregate",
            INVALID,
            "give exactly one of argmin, argmax, topK, sum, mean, concat, none",
        );
    }
    for (name, output, most) in numbers {
        let Some(output) = output else { continue };
        let path = format!("spec.aggregate.{name}.output");
        let found = usize::try_from(output).ok().and_then(|output| layout.outputs().get(output));
        let Some(found) = found else {
            let message = format!(
                "output {output} not found: the kernel has {}, counted from 0",
                layout.outputs().len()
            );
            return refuse(path, "UnknownOutput", message);
        };
        if found.count > most {
            return refuse(
                path,
                INVALID,
                format!("output {output} has {} elements, {name} takes at most {most}", found.count),
            );
        }
    }
    Ok(())
}

/// The layout and aggregate of a burst whose agents return only the aggregated output, because results go to a store or are not all kept.
/// The aggregate refers to it as the only output. Also returns the number of the output.
fn aggregated_alone(spec: &BurstJobSpec, whole: &Layout) -> (Layout, Option<Aggregate>, Option<u32>) {
    let aggregator = super::aggregate::Aggregator::new(spec.aggregate.as_ref(), whole);
    let mut kernel = spec.kernel.clone();
    let Some(output) = aggregator.output() else {
        kernel.args.clear();
        return (Layout::of(&kernel), spec.aggregate.clone(), None);
    };
    let mut outputs = kernel.args.into_iter().filter(|argument| argument.output.is_some());
    kernel.args = outputs.nth(output).into_iter().collect();
    let mut aggregate = spec.aggregate.clone();
    if let Some(aggregate) = &mut aggregate {
        for selector in [
            &mut aggregate.argmin,
            &mut aggregate.argmax,
            &mut aggregate.sum,
            &mut aggregate.mean,
        ]
        .into_iter()
        .flatten()
        {
            selector.output = 0;
        }
        if let Some(top) = &mut aggregate.top_k {
            top.output = 0;
        }
    }
    (Layout::of(&kernel), aggregate, u32::try_from(output).ok())
}

impl ValidBurst {
    /// The parameters of a chunk, by name.
    pub fn parameters(&self, index: u64) -> BTreeMap<String, Scalar> {
        let mut values = Vec::new();
        if self.chunks.evaluate(index, &mut values).is_err() {
            return BTreeMap::new();
        }
        let names = self.chunks.parameters().iter().map(|parameter| parameter.name.clone());
        names.zip(values).collect()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
