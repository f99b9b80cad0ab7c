//! The types of `spec.chunks` of a BurstJob: the number of chunks and the parameters of each. `sahasra-crds` re-exports them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MAX_CHUNKS, one_of, rules};

pub const MAX_PARAMETERS: usize = 32;
/// Maximum number of lists of a product.
pub const MAX_AXES: usize = 16;
/// Maximum number of values of a list: of a parameter, of a product or to choose from.
pub const MAX_VALUES: usize = 4_096;
/// Maximum length of a parameter's name in characters.
pub const MAX_NAME_LENGTH: usize = 63;
/// Maximum length of a formula in characters.
pub const MAX_FORMULA_LENGTH: usize = 1_024;

one_of! {
    /// Number of chunks, and their parameters as functions of the index. Exactly one of `count` and `product` must be set.
    #[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[schemars(extend("x-kubernetes-validations" = [rules::exactly_one(Chunks::OPTIONS), rules::axes_apart_from_parameters()]))]
    pub struct Chunks as ChunksChoice {
        /// Number of chunks.
        #[schemars(range(min = 1, max = MAX_CHUNKS))]
        count: Count(i64) = "count",
        /// Lists of parameter values. Each combination is one chunk; the last list varies fastest.
        #[schemars(length(min = 1, max = MAX_AXES), extend("x-kubernetes-validations" = [rules::distinct_axes()]))]
        product: Product(Vec<ProductAxis>) = "product",
    }
    and {
        /// Parameters by name. Each is a function of the chunk's index.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(extend("maxProperties" = MAX_PARAMETERS, "x-kubernetes-validations" = [rules::parameter_names(), rules::no_columns()]))]
        pub parameters: BTreeMap<String, ParameterSpec>,
        /// Seed of all `random` parameters. The same seed gives the same values on every device.
        #[serde(default)]
        #[schemars(range(min = 0))]
        pub seed: i64,
    }
}

/// List of a product.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProductAxis {
    /// Name of the parameter.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH), extend("x-kubernetes-validations" = [rules::parameter_name(), rules::no_column()]))]
    pub name: String,
    /// Type of the parameter.
    #[serde(rename = "type")]
    pub type_: ScalarType,
    /// Values of the parameter.
    #[schemars(length(min = 1, max = MAX_VALUES))]
    pub list: Vec<f64>,
}

one_of! {
    /// Parameter as a function of the index. Exactly one of `cel`, `list`, `range` and `random` must be set.
    #[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[schemars(extend("x-kubernetes-validations" = [rules::exactly_one(ParameterSpec::OPTIONS)]))]
    pub struct ParameterSpec {
        /// Type of the parameter.
        #[serde(rename = "type")]
        pub type_: ScalarType,
    } as ParameterChoice {
        /// CEL expression over `index` (int, from 0) and `count` (int) that returns an int or a double, such as
        /// `0.0001 * (1.0 + double(index % 100))`.
        #[schemars(length(min = 1, max = MAX_FORMULA_LENGTH))]
        cel: Cel(String) = "cel",
        /// Values that chunks take in turn, repeated from the start.
        #[schemars(length(min = 1, max = MAX_VALUES))]
        list: List(Vec<f64>) = "list",
        /// Evenly spaced values.
        range: Range(RangeSpec) = "range",
        /// Seeded random values. They depend only on the seed, the name of the parameter and the index.
        random: Random(RandomSpec) = "random",
    }
}

one_of! {
    /// `start + step × index`, or from `start` to `stop` (both reached) over all chunks.
    #[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[schemars(extend("x-kubernetes-validations" = [rules::exactly_one(RangeSpec::OPTIONS)]))]
    pub struct RangeSpec {
        /// Value of chunk 0.
        pub start: f64,
    } as RangeChoice {
        /// Difference from one chunk to the next.
        step: Step(f64) = "step",
        /// Value of the last chunk. For integer types, the difference to `start` must be divisible into integer steps.
        stop: Stop(f64) = "stop",
    }
}

one_of! {
    /// Distribution of random values. Exactly one field must be set.
    #[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
    #[serde(rename_all = "camelCase")]
    #[schemars(extend("x-kubernetes-validations" = [rules::exactly_one(RandomSpec::OPTIONS)]))]
    pub struct RandomSpec as RandomChoice {
        /// Uniform distribution between `min` (included) and `max` (excluded).
        uniform: Uniform(Interval) = "uniform",
        /// Distribution that is uniform in the logarithm. `min` must be greater than 0.
        #[schemars(transform = rules::positive_minimum)]
        log_uniform: LogUniform(Interval) = "logUniform",
        /// Values to choose from, each with the same probability.
        #[schemars(length(min = 1, max = MAX_VALUES))]
        choice: Choice(Vec<f64>) = "choice",
    }
}

/// A half-open interval.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [rules::ordered_bounds()]))]
pub struct Interval {
    /// Lower bound, included.
    pub min: f64,
    /// Upper bound, excluded.
    pub max: f64,
}

/// Type of a kernel's scalar or of an array's element, in PTX's names.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum ScalarType {
    /// 8-bit unsigned integer.
    U8,
    /// 32-bit signed integer.
    S32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit signed integer.
    S64,
    /// 64-bit unsigned integer.
    U64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl ScalarType {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::S32 | Self::U32 | Self::F32 => 4,
            Self::S64 | Self::U64 | Self::F64 => 8,
        }
    }
}
