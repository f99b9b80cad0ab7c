//! Layout of a burst's folder in an object store: names and contents of the objects, without a client.
//!
//! Agents write segments (`sahasra_store::segment`). Index objects list which indices count in which segment: each checkpoint adds one
//! index object for the results counted since the last checkpoint, and index objects are never changed. The checkpoint's ConfigMap lists
//! the index objects that count, as numbers by term; the manifest of a finished burst lists them by name. So neither grows with the number
//! of segments, and a coordinator that takes over need not read them.

use std::{collections::BTreeMap, fmt::Write};

use sahasra_crds::burst_job::Kernel;
use sahasra_wire::burst::FailureCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    index_set::{IndexSet, ranges_text},
    layout::{Layout, Output},
};

/// Name of the list of index objects of a finished burst.
pub const MANIFEST: &str = "manifest.json";
/// Name of the list of failed chunks, in the folder or in the ConfigMap.
pub const FAILED_CSV: &str = "failed.csv";
/// Maximum number of index objects of a burst: one for each checkpoint, and a checkpoint every five seconds for two months.
const MAX_OBJECTS: u64 = 1 << 20;
/// Maximum number of index objects in all terms, used or not, because each takes a bit.
const MAX_NUMBERS: u64 = 1 << 24;

/// A segment, and the part of it that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub name: String,
    /// Ranges (first, count) of the indices that were counted from the segment, in ascending order.
    pub counted: Vec<(u64, u64)>,
}

/// The index objects that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentIndex {
    /// Numbers of the index objects, by the term of the coordinator that wrote them.
    numbers: BTreeMap<u64, IndexSet>,
}

impl SegmentIndex {
    /// Adds an index object.
    pub fn add(&mut self, term: u64, number: u64) {
        self.numbers.entry(term).or_default().insert(number, 1);
    }

    /// Names in the folder of all index objects, in the order in which they were written.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.numbers.iter().flat_map(|(term, numbers)| {
            let numbers = numbers.ranges().flat_map(|(first, count)| first..first + count);
            numbers.map(|number| index_name(*term, number))
        })
    }

    /// The numbers of the index objects as text, by term, for the checkpoint.
    pub fn to_state(&self) -> BTreeMap<u64, String> {
        let text = |(term, numbers): (&u64, &IndexSet)| (*term, numbers.text(usize::MAX));
        self.numbers.iter().map(text).collect()
    }

    /// Parses the output of [`SegmentIndex::to_state`] for a burst of `chunks`, in terms up to `term`. Returns `None` for anything else. A
    /// tenant can change the text, so its memory use is checked before any set is created.
    pub fn from_state(state: &BTreeMap<u64, String>, term: u64, chunks: u64) -> Option<Self> {
        let parsed = state.iter().map(|(term, text)| {
            let ranges = text.split(',').map(range).collect::<Option<Vec<_>>>()?;
            Some((*term, ranges))
        });
        let parsed = parsed.collect::<Option<Vec<_>>>()?;
        let (mut objects, mut numbers) = (0u64, 0u64);
        for (_, ranges) in &parsed {
            objects = ranges.iter().fold(objects, |sum, (_, count)| sum.saturating_add(*count));
            let end = ranges.iter().map(|(first, count)| first + count).max().unwrap_or_default();
            numbers = numbers.saturating_add(end);
        }
        // Each object counts at least one chunk.
        let is_sound = objects <= chunks.min(MAX_OBJECTS) && numbers <= MAX_NUMBERS && parsed.iter().all(|(written, _)| *written <= term);
        is_sound.then(|| Self {
            numbers: parsed
                .into_iter()
                .map(|(term, ranges)| (term, ranges.into_iter().collect()))
                .collect(),
        })
    }
}

/// Parses first and count of a range such as `0-41` or `43`.
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some((first, last.checked_sub(first)?.checked_add(1)?)).filter(|(first, count)| first.checked_add(*count).is_some())
}

pub fn index_name(term: u64, number: u64) -> String {
    format!("index/term-{term}/{number:08}.json")
}

/// Folder of the sets of a checkpoint that are too large for its ConfigMap.
pub fn sets_folder(term: u64, number: u64) -> String {
    format!("checkpoints/term-{term}/{number:08}")
}

/// Contents of an index object for these segments, as JSON.
pub fn index_object(segments: &[Segment]) -> Vec<u8> {
    let segments: Vec<_> = (segments.iter())
        .map(|segment| json!({"name": segment.name, "indexes": ranges_text(segment.counted.iter().copied(), usize::MAX)}))
        .collect();
    json!({"segments": segments}).to_string().into_bytes()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    version: u32,
    chunks: u64,
    succeeded: u64,
    failed: u64,
    record_bytes: u64,
    outputs: Vec<Output>,
    index: Vec<String>,
}

/// Contents of the manifest of a burst.
pub fn manifest(kernel: &Kernel, chunks: u64, succeeded: u64, failed: u64, index: &SegmentIndex) -> Vec<u8> {
    let layout = Layout::of(kernel);
    let manifest = Manifest {
        version: 1,
        chunks,
        succeeded,
        failed,
        record_bytes: layout.record_bytes() as u64,
        outputs: layout.outputs().to_vec(),
        index: index.names().collect(),
    };
    serde_json::to_vec_pretty(&manifest).expect("plain data")
}

/// Contents of `failed.csv`: index and cause of every failed chunk. Split into parts of at least `part` bytes each, except for the last.
pub fn failed_csv<'a>(causes: &'a BTreeMap<FailureCode, IndexSet>, failed: &'a IndexSet, part: usize) -> impl Iterator<Item = String> + 'a {
    let mut rows = failed.ranges().flat_map(|(first, count)| first..first + count);
    let mut next = Some("index,code\n".to_owned());
    std::iter::from_fn(move || {
        let mut text = next.take()?;
        for index in rows.by_ref() {
            let cause = causes.iter().find(|(_, set)| set.contains(index));
            let label = cause.map_or(FailureCode::Unspecified.label(), |(code, _)| code.label());
            writeln!(text, "{index},{label}").expect("a String takes all");
            if text.len() >= part {
                next = Some(String::new());
                break;
            }
        }
        Some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_objects_are_named_by_term_and_number_and_read_back() {
        let mut index = SegmentIndex::default();
        for (term, number) in [(1, 0), (1, 1), (3, 2), (3, 4)] {
            index.add(term, number);
        }
        let state = index.to_state();
        assert_eq!(state, BTreeMap::from([(1, "0-1".to_owned()), (3, "2,4".to_owned())]));
        assert_eq!(SegmentIndex::from_state(&state, 3, 4), Some(index.clone()));
        assert_eq!(SegmentIndex::from_state(&state, 2, 4), None, "of a term to come");
        assert_eq!(SegmentIndex::from_state(&state, 3, 3), None, "more objects than chunks");
        let names: Vec<String> = index.names().collect();
        assert_eq!(names[0], "index/term-1/00000000.json");
        assert_eq!(names[3], "index/term-3/00000004.json");
        for wrong in ["", "x", "3-1", "0-18446744073709551615", "99999999", "1,,2", "0-1048576"] {
            let state = BTreeMap::from([(1, wrong.to_owned())]);
            assert_eq!(SegmentIndex::from_state(&state, 1, 1 << 30), None, "{wrong}");
        }
        // A single high number in each of many terms takes as much memory as all numbers before it.
        let many: BTreeMap<u64, String> = (1..=16).map(|term| (term, "2000000".to_owned())).collect();
        assert_eq!(SegmentIndex::from_state(&many, 16, 1 << 30), None);
    }

    #[test]
    fn an_index_object_lists_what_counts_of_each_segment() {
        let segment = Segment {
            name: "segments/term-1/attempt-1/boot-00000001.segment".into(),
            counted: vec![(0, 42), (43, 1)],
        };
        let read: serde_json::Value = serde_json::from_slice(&index_object(&[segment])).unwrap();
        let expected = json!({"segments": [{"name": "segments/term-1/attempt-1/boot-00000001.segment", "indexes": "0-41,43"}]});
        assert_eq!(read, expected);
    }

    #[test]
    fn failed_chunks_are_listed_by_index_with_their_cause() {
        let causes = BTreeMap::from([
            (FailureCode::Trap, IndexSet::from_iter([(1, 2), (9, 1)])),
            (FailureCode::ChunkTimeout, IndexSet::from_iter([(4, 1)])),
        ]);
        let failed = IndexSet::from_iter([(1, 2), (4, 1), (9, 1)]);
        let whole: Vec<String> = failed_csv(&causes, &failed, 1 << 20).collect();
        assert_eq!(whole, ["index,code\n1,Trap\n2,Trap\n4,ChunkTimeout\n9,Trap\n"]);
        let parts: Vec<String> = failed_csv(&causes, &failed, 20).collect();
        assert!(parts.len() > 1);
        assert_eq!(parts.concat(), whole[0]);
    }
}
