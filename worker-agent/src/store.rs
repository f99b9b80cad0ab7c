//! Writes segments of results to the object store of a job.

use bytes::Bytes;
use object_store::{ObjectStoreExt, PutPayload, path::Path};
use sahasra_ranges::AttemptRange;
use sahasra_store::segment::SegmentWriter;
use sahasra_wire::burst::{Store, argument};

pub(crate) use sahasra_store::{StorePolicy, segment::SegmentName};

use crate::burst_executors::ProgramSpec;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("failed to open the store: {0}")]
    Open(#[from] sahasra_store::OpenError),
    #[error("failed to write a segment: {}", sahasra_store::summary(.0))]
    Put(#[from] object_store::Error),
}

/// Returns the size in bytes of each output of a chunk, in the kernel's order.
pub(crate) fn output_sizes(program: &ProgramSpec) -> Vec<u64> {
    let arguments = program.program.arguments.iter();
    arguments
        .filter_map(|argument| match argument.kind {
            Some(argument::Kind::OutputBytes(bytes)) => Some(bytes),
            _ => None,
        })
        .collect()
}

/// Writes chunks, in the order of their indices, as one object. Returns the object's name once the write has succeeded.
///
/// # Errors
/// [`StoreError`]. The object may exist nevertheless, but nothing refers to it.
pub(crate) async fn write_segment(
    policy: &StorePolicy,
    store: &Store,
    name: &SegmentName,
    program: &ProgramSpec,
    succeeded: &[(AttemptRange, Bytes)],
) -> Result<String, StoreError> {
    let mut segment = SegmentWriter::new(program.output_bytes as usize);
    for (range, outputs) in succeeded {
        segment.add(range.first, range.count, outputs);
    }
    let text = name.text();
    let opened = sahasra_store::open(policy, &store.url, &store.options)?;
    opened
        .put(&Path::from(text.as_str()), PutPayload::from_bytes(segment.finish()))
        .await?;
    Ok(text)
}
