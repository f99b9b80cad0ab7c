//! Aggregates over all results of a burst.

use kube::KubeSchema;
use sahasra_parameters::one_of;
use serde::{Deserialize, Serialize};

use super::kernel::MAX_ARGUMENTS;
use crate::rules::exactly_one;

/// Maximum number of elements of an output for aggregates of each element, because the status contains their result.
pub(super) const MAX_ELEMENTS: usize = 256;

/// Maximum number of chunks that `topK` lists.
pub(super) const MAX_BEST: usize = 100;

/// Maximum number of elements of an output for each aggregate. The rules of the definition have the same order.
pub(super) const OUTPUT_ELEMENTS: &[(&str, usize)] = &[
    ("argmin", 1),
    ("argmax", 1),
    ("topK", 1),
    ("sum", MAX_ELEMENTS),
    ("mean", MAX_ELEMENTS),
    ("concat", usize::MAX),
];

/// Message about an output that the kernel does not have.
pub const UNKNOWN_OUTPUT: &str =
    "output must be smaller than the number of the kernel's output arguments: 0 is the first, and a kernel without one has no aggregate";

/// Message about an output with more than `most` elements, which `aggregate` does not take.
pub fn elements_message(aggregate: &str, most: usize) -> String {
    match most {
        1 => format!("{aggregate} compares single numbers: choose an output of count 1"),
        _ => format!("{aggregate} takes outputs of at most {most} elements: choose a smaller one, or concat"),
    }
}

one_of! {
    /// Aggregate of all results. Exactly one field must be set. With `none`, as without an aggregate, nothing is computed.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(Aggregate::OPTIONS))]
    pub struct Aggregate as AggregateChoice {
        /// Chunk with the smallest value; of equal values, the lowest index. An infinity can be the smallest; NaN is ignored.
        argmin: Argmin(OutputSelector) = "argmin",
        /// Chunk with the largest value; of equal values, the lowest index. An infinity can be the largest; NaN is ignored.
        argmax: Argmax(OutputSelector) = "argmax",
        /// The k best chunks, starting with the best. NaN is ignored.
        top_k: TopK(TopK) = "topK",
        /// Elementwise sum over all chunks, rounded once at the end: the order of results does not matter. The sum with a NaN is NaN.
        sum: Sum(OutputSelector) = "sum",
        /// Elementwise mean over all chunks, with its 95 % confidence interval by Student's t. The mean with a NaN is NaN.
        mean: Mean(OutputSelector) = "mean",
        /// All values in the order of the index. The results contain them.
        concat: Concat(OutputSelector) = "concat",
        /// No aggregate.
        none: None(NoAggregate) = "none",
    }
}

impl AggregateChoice<'_> {
    /// The output that is aggregated, by its place among the kernel's `output` arguments.
    pub const fn output(self) -> Option<i64> {
        match self {
            Self::Argmin(selector) | Self::Argmax(selector) | Self::Sum(selector) | Self::Mean(selector) | Self::Concat(selector) => {
                Some(selector.output)
            }
            Self::TopK(top) => Some(top.output),
            Self::None(_) => None,
        }
    }
}

/// Returns the maximum number of elements of an output for the aggregate of this name; `None` for `none`, which has no output.
pub fn most_elements(aggregate: &str) -> Option<usize> {
    OUTPUT_ELEMENTS.iter().find(|(name, _)| *name == aggregate).map(|(_, most)| *most)
}

/// Output, by its position among the kernel's `output` arguments.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OutputSelector {
    /// Position of the output among the kernel's `output` arguments, from 0. Aggregates that compare chunks take one element, those of each element at most 256.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_ARGUMENTS - 1))]
    pub output: i64,
}

/// The k best chunks.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TopK {
    /// Position of the output to compare among the kernel's `output` arguments, from 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_ARGUMENTS - 1))]
    pub output: i64,
    /// Number of chunks.
    #[schemars(range(min = 1, max = MAX_BEST))]
    pub k: i64,
    /// Order of the values.
    #[serde(default)]
    pub order: Order,
}

/// Order of values.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Smaller values are better.
    #[default]
    Smallest,
    /// Larger values are better.
    Largest,
}

/// No settings.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NoAggregate {}
