//! What is computed over all results of a burst.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::rules::exactly_one;

/// Most elements of an output that `sum` and `mean` take: their result stands in the status.
pub const MOST_ELEMENTS: usize = 256;

/// Exactly one of the fields; `none`, like no aggregate at all, only keeps the results.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = exactly_one(&["argmin", "argmax", "topK", "sum", "mean", "concat", "none"]))]
pub struct Aggregate {
    /// The chunk with the smallest value; of equal ones the lowest index. NaN never wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argmin: Option<OutputSelector>,
    /// The chunk with the largest value; of equal ones the lowest index. NaN never wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argmax: Option<OutputSelector>,
    /// The k best chunks, best first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<TopK>,
    /// The sum over all chunks, element by element, exactly rounded whatever the order of arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<OutputSelector>,
    /// The mean over all chunks, element by element, with its 95 % confidence interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<OutputSelector>,
    /// All values in the order of the index: they stand in the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concat: Option<OutputSelector>,
    /// Nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub none: Option<NoAggregate>,
}

/// An output by its place among the kernel's `output` arguments.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct OutputSelector {
    /// 0 is the first `output` argument. `argmin`, `argmax` and `topK` take outputs of one element, `sum` and `mean` of at most 256.
    #[serde(default)]
    #[schemars(range(min = 0, max = 63))]
    pub output: i64,
}

/// The k best chunks.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TopK {
    /// The output to compare.
    #[serde(default)]
    #[schemars(range(min = 0, max = 63))]
    pub output: i64,
    /// How many.
    #[schemars(range(min = 1, max = 100))]
    pub k: i64,
    /// Which is better.
    #[serde(default)]
    pub order: Order,
}

/// Which value is better.
#[derive(schemars::JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Smaller is better.
    #[default]
    Smallest,
    /// Larger is better.
    Largest,
}

/// No settings.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NoAggregate {}
