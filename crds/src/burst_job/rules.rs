//! Rules of a burst that concern several fields.

use kube::core::{Reason, Rule, validate};
use sahasra_parameters::launch::{MAX_BLOCK, MAX_GRID, MAX_THREADS, block_message};
use schemars::Schema;
use serde_json::Value;

use super::{
    aggregate::{OUTPUT_ELEMENTS, UNKNOWN_OUTPUT, elements_message},
    kernel::{MAX_OUTPUT_BYTES, output_message},
};
use crate::rules::{immutable, rule};

const IMMUTABLE: [&str; 10] = [
    "kernel",
    "chunks",
    "slice",
    "lease",
    "retryPolicy",
    "chunkTimeoutSeconds",
    "maxFailedChunks",
    "aggregate",
    "output",
    "results",
];

/// Adds the rules of the whole spec to its schema.
pub(super) fn add(schema: &mut Schema) {
    let rules = IMMUTABLE
        .iter()
        .map(|field| immutable(field, "BurstJob"))
        .chain([declared_parameters()])
        .chain(OUTPUT_ELEMENTS.iter().map(|(aggregate, _)| output_exists(aggregate)))
        .chain(
            OUTPUT_ELEMENTS
                .iter()
                .filter_map(|(aggregate, most)| output_elements(aggregate, *most)),
        )
        .chain([urls_need_a_store(), concat_keeps_results(), slices_within_count()]);
    for rule in rules {
        validate(schema, rule).expect("a rule is plain data");
    }
    name_undeclared(schema);
}

/// Whether the parameter of the argument `arg` is declared, as a parameter or as a list of the product, if it has one.
const IS_DECLARED: &str = "!has(arg.parameter) || \
                           (has(self.chunks.parameters) && arg.parameter in self.chunks.parameters) || \
                           (has(self.chunks.product) && self.chunks.product.exists(axis, axis.name == arg.parameter))";
const UNDECLARED: &str = "an argument names a parameter that chunks does not declare";
const DECLARE: &str = "declare it in chunks.parameters or as a list of chunks.product";

/// Every `parameter` argument is declared.
fn declared_parameters() -> Rule {
    rule(
        format!("self.kernel.args.all(arg, {IS_DECLARED})"),
        format!("{UNDECLARED}: {DECLARE}"),
    )
    .field_path(".kernel.args")
}

/// Adds the message that the API server shows of [`declared_parameters`], which names the first such parameter. The other message is for the
/// reference.
fn name_undeclared(schema: &mut Schema) {
    let rules = schema.get_mut("x-kubernetes-validations").and_then(Value::as_array_mut);
    let is_own = |rule: &&mut Value| rule["message"].as_str().is_some_and(|message| message.starts_with(UNDECLARED));
    let rule = rules.into_iter().flatten().find(is_own).expect("the rule was added");
    // The index of the argument, or a list of arguments instead of names, would cost more than the API server allows.
    let expression = format!(
        "'an argument names the parameter ' + self.kernel.args.map(arg, !({IS_DECLARED}), arg.parameter)[0] + \
         ', which chunks does not declare: {DECLARE}'"
    );
    rule["messageExpression"] = Value::from(expression);
}

/// The aggregate's `output` is one of the kernel's.
fn output_exists(aggregate: &str) -> Rule {
    when(
        aggregate,
        &format!("self.aggregate.{aggregate}.output < {OUTPUTS}.size()"),
        UNKNOWN_OUTPUT.to_owned(),
    )
}

/// The aggregate's output has at most `most` elements; an output that does not exist is another rule's. `None` if every output has.
fn output_elements(aggregate: &str, most: usize) -> Option<Rule> {
    let message = match most {
        usize::MAX => return None,
        _ => elements_message(aggregate, most),
    };
    Some(when(
        aggregate,
        &format!(
            "self.aggregate.{aggregate}.output >= {OUTPUTS}.size() || \
             {OUTPUTS}[self.aggregate.{aggregate}.output].output.count <= {most}"
        ),
        message,
    ))
}

const OUTPUTS: &str = "self.kernel.args.filter(arg, has(arg.output))";

fn when(aggregate: &str, condition: &str, message: String) -> Rule {
    rule(
        format!("!has(self.aggregate) || !has(self.aggregate.{aggregate}) || {condition}"),
        message,
    )
    .field_path(format!(".aggregate.{aggregate}.output"))
}

/// Objects in a store are read with the store's secret.
fn urls_need_a_store() -> Rule {
    rule(
        "has(self.output) || (!has(self.kernel.ptx.url) && \
         self.kernel.args.all(arg, !(has(arg.input) && has(arg.input.from.url)) && !(has(arg.constant) && has(arg.constant.url))))",
        "a url in kernel is read from the store of output: set output.store",
    )
    .field_path(".output")
    .reason(Reason::FieldValueRequired)
}

/// `concat` has no value other than the results, so they must be kept.
fn concat_keeps_results() -> Rule {
    rule(
        "!has(self.aggregate) || !has(self.aggregate.concat) || !has(self.results) || self.results == 'All'",
        "concat is made of the results: keep them with results: All, or choose another aggregate",
    )
    .field_path(".results")
}

/// A burst cannot use more slices than it has chunks.
fn slices_within_count() -> Rule {
    rule(
        // A count below 1 is another rule's.
        "!has(self.chunks.count) || self.chunks.count < 1 || self.slices.min <= self.chunks.count",
        "min must not exceed chunks.count: a slice runs one chunk at a time",
    )
    .field_path(".slices.min")
}

/// An output must fit in a frame. The operator checks the total of several outputs.
pub(super) fn output_bytes() -> Rule {
    rule(
        format!("self.count * (self.type == 'u8' ? 1 : (self.type in ['u32', 's32', 'f32'] ? 4 : 8)) <= {MAX_OUTPUT_BYTES}"),
        output_message(),
    )
    .field_path(".count")
}

/// CUDA's limit of the threads of a block, on every device.
pub(super) fn block_threads() -> Rule {
    rule(
        format!(
            "self.block[0] * (self.block.size() > 1 ? self.block[1] : 1) * (self.block.size() > 2 ? self.block[2] : 1) <= {MAX_THREADS}"
        ),
        block_message(),
    )
    .field_path(".block")
}

/// CUDA's limit of a block's third dimension.
pub(super) fn block_depth() -> Rule {
    let depth = MAX_BLOCK[2];
    rule(
        format!("self.block.size() < 3 || self.block[2] <= {depth}"),
        format!("a block is at most {depth} deep in z: lower it"),
    )
    .field_path(".block")
}

/// CUDA's limits of a grid's second and third dimension.
pub(super) fn grid_extent() -> Rule {
    let most = MAX_GRID[1];
    rule(
        format!("(self.grid.size() < 2 || self.grid[1] <= {most}) && (self.grid.size() < 3 || self.grid[2] <= {most})"),
        format!("a grid has at most {most} blocks in y and in z: use x"),
    )
    .field_path(".grid")
}

/// A value must be representable in the declared type. Numbers in manifests are exact up to 2^53 - 1: 2^53 + 1 is read as 2^53. `double(self.value)`
/// is for evaluators other than the API server's, which read `255` in a field of numbers as an int.
pub(super) fn representable() -> Rule {
    const WHOLE: &str =
        "self.value >= -9007199254740991.0 && self.value <= 9007199254740991.0 && double(self.value) == double(int(self.value))";
    let within =
        |type_: &str, min: &str, max: &str| format!("(self.type == '{type_}' && self.value >= {min} && self.value <= {max} && {WHOLE})");
    rule(
        [
            "self.type == 'f64'".to_owned(),
            "(self.type == 'f32' && self.value >= -3.4028234663852886e38 && self.value <= 3.4028234663852886e38)".to_owned(),
            within("u8", "0.0", "255.0"),
            within("s32", "-2147483648.0", "2147483647.0"),
            within("u32", "0.0", "4294967295.0"),
            within("u64", "0.0", "9007199254740991.0"),
            format!("(self.type == 's64' && {WHOLE})"),
        ]
        .join(" || "),
        "value must be one that type has: whole and in range for whole types (below 2^53), up to 3.4e38 for f32",
    )
    .field_path(".value")
}

/// A text must be standard base64. The cost limit allows only a part of the check; the operator rejects underscores and misplaced `=`.
/// The schema's own `format: byte` rejects `+` and `/` in objects with rules, and its message repeats the whole text twice.
pub(super) fn base64() -> Rule {
    rule(
        r"self.size() % 4 == 0 && !self.matches('[^\\w+/=]')",
        "write standard base64 in one piece: A-Z a-z 0-9 + /, filled with = to a multiple of 4, no line breaks",
    )
}

/// A store over the network is opened with a secret of the job's namespace, never with the agent's own rights.
pub(super) fn secret_for_remote_store() -> Rule {
    rule(
        "self.url.startsWith('file://') || has(self.secretRef)",
        "s3, gs and az stores need secretRef: name a Secret of this namespace with the store's settings",
    )
    .field_path(".secretRef")
    .reason(Reason::FieldValueRequired)
}
