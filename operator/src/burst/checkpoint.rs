//! The checkpoint: all of a burst that survives a crash, in one ConfigMap, written atomically by compare-and-set.
//!
//! `data["checkpoint.json"]` holds the term, the failures, the aggregator and the segments; `binaryData` holds `completed`
//! and `failed` (sets of indices, see [`IndexSet::encode`]) and, when results are kept here, `results`: one record a
//! chunk in the order of the index, zeros where there is none (yet). A finished burst adds `results.csv` for people.

use std::{collections::BTreeMap, fmt::Write};

use serde::{Deserialize, Serialize};

use super::{
    account::FailedChunk,
    aggregate::Aggregator,
    index_set::{DecodeError, IndexSet},
    layout::Layout,
};

/// Most bytes of results that are kept in the ConfigMap: etcd refuses objects of 1.5 MiB, and base64 adds a third.
pub const MAX_INLINE_RESULT_BYTES: u64 = 512 << 10;
/// Most bytes of `results.csv`; beyond that only the records are kept.
pub const MAX_CSV_BYTES: usize = 256 << 10;

const STATE: &str = "checkpoint.json";
const COMPLETED: &str = "completed";
const FAILED: &str = "failed";
const RESULTS: &str = "results";
/// Key of the results as text.
pub const CSV: &str = "results.csv";

/// All of a burst that survives a crash.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// UID of the `BurstJob`: a ConfigMap of another one with the same name is not taken for it.
    pub uid: String,
    /// Term of the coordinator that wrote it.
    pub term: u64,
    /// Indices that succeeded.
    pub completed: IndexSet,
    /// Indices that failed for good.
    pub failed: IndexSet,
    /// The first failures.
    pub failures: Vec<FailedChunk>,
    /// Attempts beyond the first.
    pub retried: u64,
    /// Most slices held at the same time.
    pub peak_slices: u64,
    /// The aggregate over `completed`.
    pub aggregator: Aggregator,
    /// The results of `completed`.
    pub results: Results,
}

/// Where results are.
#[derive(Clone, Debug, PartialEq)]
pub enum Results {
    /// Here: one record a chunk.
    Inline(Vec<u8>),
    /// In the object store.
    Store(Vec<Segment>),
}

/// An object with results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its name under the job's URL.
    pub name: String,
    /// The counted indices in it, as text: `0-41,43`.
    pub indexes: String,
}

/// What a ConfigMap holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// `data`.
    pub data: BTreeMap<String, String>,
    /// `binaryData`, before base64.
    pub binary_data: BTreeMap<String, Vec<u8>>,
}

/// Why a ConfigMap is no checkpoint of this burst.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A key is missing.
    #[error("the key {0} is missing")]
    Missing(&'static str),
    /// The state is no JSON of ours.
    #[error("{STATE} does not parse")]
    State(#[from] serde_json::Error),
    /// A set of indices does not decode.
    #[error("a set of indices does not decode")]
    Indices(#[from] DecodeError),
    /// The ConfigMap belongs to another object.
    #[error("it belongs to the BurstJob with UID {0}")]
    OtherJob(String),
    /// The results have another size than the spec gives.
    #[error("it holds {found} bytes of results where {expected} are expected")]
    Size {
        /// Bytes there.
        found: usize,
        /// Bytes that the spec gives.
        expected: usize,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    uid: String,
    term: u64,
    failures: Vec<FailedChunk>,
    retried: u64,
    #[serde(default)]
    peak_slices: u64,
    aggregator: Aggregator,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segments: Option<Vec<Segment>>,
}

impl Checkpoint {
    /// The contents of the ConfigMap.
    pub fn encode(&self) -> Contents {
        let state = State {
            uid: self.uid.clone(),
            term: self.term,
            failures: self.failures.clone(),
            retried: self.retried,
            peak_slices: self.peak_slices,
            aggregator: self.aggregator.clone(),
            segments: match &self.results {
                Results::Inline(_) => None,
                Results::Store(segments) => Some(segments.clone()),
            },
        };
        let text = serde_json::to_string(&state).expect("the state is plain data with text keys");
        let mut binary_data = BTreeMap::from([
            (COMPLETED.to_owned(), self.completed.encode()),
            (FAILED.to_owned(), self.failed.encode()),
        ]);
        if let Results::Inline(records) = &self.results {
            binary_data.insert(RESULTS.to_owned(), records.clone());
        }
        Contents {
            data: BTreeMap::from([(STATE.to_owned(), text)]),
            binary_data,
        }
    }

    /// Reads what [`Checkpoint::encode`] wrote for the burst `uid` of `total` chunks.
    pub fn decode(contents: &Contents, uid: &str, total: u64, layout: &Layout) -> Result<Self, CheckpointError> {
        let binary = |key: &'static str| contents.binary_data.get(key).ok_or(CheckpointError::Missing(key));
        let state: State = serde_json::from_str(contents.data.get(STATE).ok_or(CheckpointError::Missing(STATE))?)?;
        if state.uid != uid {
            return Err(CheckpointError::OtherJob(state.uid));
        }
        let results = match state.segments {
            Some(segments) => Results::Store(segments),
            None => {
                let records = binary(RESULTS)?.clone();
                let expected = total as usize * layout.record_bytes();
                if records.len() != expected {
                    return Err(CheckpointError::Size {
                        found: records.len(),
                        expected,
                    });
                }
                Results::Inline(records)
            }
        };
        Ok(Self {
            uid: state.uid,
            term: state.term,
            completed: IndexSet::decode(binary(COMPLETED)?)?,
            failed: IndexSet::decode(binary(FAILED)?)?,
            failures: state.failures,
            retried: state.retried,
            peak_slices: state.peak_slices,
            aggregator: state.aggregator,
            results,
        })
    }
}

/// `results.csv`: index, parameters, outputs (`output0`, or `output0[3]` for arrays), one row a completed chunk; `None` when
/// it would exceed [`MAX_CSV_BYTES`]. `parameters` writes the values of a chunk, in the order of `names`.
pub fn csv(
    completed: &IndexSet,
    records: &[u8],
    layout: &Layout,
    names: &[String],
    mut parameters: impl FnMut(u64) -> Vec<String>,
) -> Option<String> {
    let mut text = String::from("index");
    for name in names {
        text.push(',');
        text.push_str(name);
    }
    for (place, output) in layout.outputs().iter().enumerate() {
        for element in 0..output.count {
            let written = if output.count == 1 {
                write!(text, ",output{place}")
            } else {
                write!(text, ",output{place}[{element}]")
            };
            written.expect("a String takes all");
        }
        if text.len() > MAX_CSV_BYTES {
            return None;
        }
    }
    text.push('\n');
    for index in completed.ranges().flat_map(|(first, count)| first..first + count) {
        let record = &records[index as usize * layout.record_bytes()..][..layout.record_bytes()];
        text.push_str(&index.to_string());
        for value in parameters(index) {
            text.push(',');
            text.push_str(&value);
        }
        for output in layout.outputs() {
            let bytes = &record[output.offset..output.offset + output.count * output.element.bytes()];
            for element in bytes.chunks_exact(output.element.bytes()) {
                text.push(',');
                text.push_str(&Layout::text(output.element, element));
            }
        }
        text.push('\n');
        if text.len() > MAX_CSV_BYTES {
            return None;
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use sahasra_crds::burst_job::{Argument, Kernel, ScalarType, kernel::OutputArgument};

    use super::*;

    fn layout() -> Layout {
        let output = |type_, count| Argument {
            output: Some(OutputArgument { type_, count }),
            ..Argument::default()
        };
        let args = vec![output(ScalarType::F32, 1), output(ScalarType::U8, 2)];
        Layout::of(&Kernel {
            ptx: Default::default(),
            entry: "k".into(),
            grid: vec![1],
            block: vec![1],
            dynamic_shared_bytes: 0,
            args,
        })
    }

    fn checkpoint() -> Checkpoint {
        let mut completed = IndexSet::full(2);
        completed.insert(3, 1);
        let mut failed = IndexSet::default();
        failed.insert(2, 1);
        let mut records = vec![0; 4 * 6];
        records[..6].copy_from_slice(&[0, 0, 0x80, 0x3f, 7, 8]);
        Checkpoint {
            uid: "uid-1".into(),
            term: 4,
            completed,
            failed,
            failures: vec![FailedChunk {
                index: 2,
                attempts: 1,
                code: "Trap".into(),
                message: "trap".into(),
            }],
            retried: 5,
            peak_slices: 12,
            aggregator: Aggregator::new(None, &layout()),
            results: Results::Inline(records),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let inline = checkpoint();
        assert_eq!(Checkpoint::decode(&inline.encode(), "uid-1", 4, &layout()).unwrap(), inline);
        let segments = vec![Segment {
            name: "term4-boot-1".into(),
            indexes: "0-1,3".into(),
        }];
        let stored = Checkpoint {
            results: Results::Store(segments),
            ..inline
        };
        assert_eq!(Checkpoint::decode(&stored.encode(), "uid-1", 4, &layout()).unwrap(), stored);
    }

    #[test]
    fn foreign_and_damaged_checkpoints_are_refused() {
        let contents = checkpoint().encode();
        assert!(matches!(
            Checkpoint::decode(&contents, "uid-2", 4, &layout()),
            Err(CheckpointError::OtherJob(_))
        ));
        assert!(matches!(
            Checkpoint::decode(&contents, "uid-1", 5, &layout()),
            Err(CheckpointError::Size { found: 24, expected: 30 })
        ));
        let mut cut = contents.clone();
        cut.binary_data.remove(COMPLETED);
        assert!(matches!(
            Checkpoint::decode(&cut, "uid-1", 4, &layout()),
            Err(CheckpointError::Missing(COMPLETED))
        ));
        let mut cut = contents;
        cut.data.insert(STATE.into(), "{}".into());
        assert!(matches!(
            Checkpoint::decode(&cut, "uid-1", 4, &layout()),
            Err(CheckpointError::State(_))
        ));
    }

    #[test]
    fn csv_has_a_row_for_each_completed_chunk() {
        let checkpoint = checkpoint();
        let Results::Inline(records) = &checkpoint.results else {
            panic!("inline")
        };
        let text = csv(&checkpoint.completed, records, &layout(), &["rate".into()], |index| {
            vec![format!("0.{index}")]
        })
        .unwrap();
        assert_eq!(
            text,
            "index,rate,output0,output1[0],output1[1]\n0,0.0,1,7,8\n1,0.1,0,0,0\n3,0.3,0,0,0\n"
        );
    }

    #[test]
    fn csv_is_left_out_when_it_would_be_too_large() {
        let total = 40_000;
        let records = vec![0; total * 6];
        assert_eq!(csv(&IndexSet::full(total as u64), &records, &layout(), &[], |_| Vec::new()), None);
    }
}
