//! What is computed over all results of a burst.

use kube::KubeSchema;
use sahasra_parameters::one_of;
use serde::{Deserialize, Serialize};

use crate::rules::exactly_one;

/// Most elements of an output that `sum` and `mean` take: their result stands in the status.
pub(super) const MOST_ELEMENTS: usize = 256;

/// Most elements of the output that an aggregate takes. The rules of the definition have the same order.
pub(super) const OUTPUT_ELEMENTS: &[(&str, usize)] = &[
    ("argmin", 1),
    ("argmax", 1),
    ("topK", 1),
    ("sum", MOST_ELEMENTS),
    ("mean", MOST_ELEMENTS),
    ("concat", usize::MAX),
];

one_of! {
    /// Exactly one of the fields; `none`, like no aggregate at all, only keeps the results.
    #[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[x_kube(validation = exactly_one(Aggregate::OPTIONS))]
    pub struct Aggregate as AggregateChoice {
        /// The chunk with the smallest value; of equal ones the lowest index. NaN never wins.
        argmin: Argmin(OutputSelector) = "argmin",
        /// The chunk with the largest value; of equal ones the lowest index. NaN never wins.
        argmax: Argmax(OutputSelector) = "argmax",
        /// The k best chunks, best first.
        top_k: TopK(TopK) = "topK",
        /// The sum over all chunks, element by element, exactly rounded whatever the order of arrival.
        sum: Sum(OutputSelector) = "sum",
        /// The mean over all chunks, element by element, with its 95 % confidence interval.
        mean: Mean(OutputSelector) = "mean",
        /// All values in the order of the index: they stand in the results.
        concat: Concat(OutputSelector) = "concat",
        /// Nothing.
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

/// Most elements of the output that an aggregate takes, by the aggregate's name; `None` for `none`, which takes no output.
pub fn most_elements(aggregate: &str) -> Option<usize> {
    OUTPUT_ELEMENTS.iter().find(|(name, _)| *name == aggregate).map(|(_, most)| *most)
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
