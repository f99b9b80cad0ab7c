//! CEL rules in the schema of `spec.chunks`, in the form of the schema's field `x-kubernetes-validations`. The API server evaluates them;
//! each message names the remedy.

use schemars::Schema;
use serde_json::{Value, json};

use crate::{one_of::message, spec::MAX_NAME_LENGTH};

const VALIDATIONS: &str = "x-kubernetes-validations";

// Messages of rules that the compilation checks as well.

/// Message about the names of parameters that are not unique.
pub(crate) const UNIQUE_NAMES: &str = "two parameters have the same name: use a unique name for each parameter";
/// Message about an interval that is empty.
pub(crate) const ORDERED_BOUNDS: &str = "min must be smaller than max";
/// Message about an interval whose logarithm does not exist.
pub(crate) const POSITIVE_MINIMUM: &str = "min must be greater than 0, because its logarithm is taken: raise min, or use uniform";

/// Message about a text that is not a parameter's name.
pub(crate) fn name_message() -> String {
    format!("a parameter name must have 1 to {MAX_NAME_LENGTH} letters, digits and underscores, no digit first")
}

/// Pattern of a parameter's name: an identifier, so that reports and formulas can contain it.
fn name_pattern() -> String {
    format!("^[A-Za-z_][A-Za-z0-9_]{{0,{}}}$", MAX_NAME_LENGTH - 1)
}

/// Columns of the results beside `index` and the parameters.
const OUTPUT_COLUMN: &str = "^output[0-9]+$";
const COLUMNS: &str = "index, output0, output1 and so on are columns of the results: rename the parameter";

fn rule(rule: impl Into<String>, message: &str) -> Value {
    json!({ "rule": rule.into(), "message": message })
}

fn rule_of_field(expression: &str, message: &str, field_path: &str) -> Value {
    json!({ "rule": expression, "message": message, "fieldPath": field_path })
}

/// CEL expression and message of the rule that an object has exactly one of `fields`.
pub fn exactly_one_expression(fields: &[&str]) -> (String, String) {
    let given: Vec<String> = fields.iter().map(|field| format!("has(self.{field})")).collect();
    (format!("[{}].filter(given, given).size() == 1", given.join(", ")), message(fields))
}

pub(crate) fn exactly_one(fields: &[&str]) -> Value {
    let (expression, message) = exactly_one_expression(fields);
    rule(expression, &message)
}

pub(crate) fn parameter_name() -> Value {
    rule(format!("self.matches('{}')", name_pattern()), &name_message())
}

/// Rule that every key of `parameters` is a valid parameter name.
pub(crate) fn parameter_names() -> Value {
    rule(format!("self.all(name, name.matches('{}'))", name_pattern()), &name_message())
}

/// Rule that a parameter does not have the name of another column of the results.
pub(crate) fn no_column() -> Value {
    rule(format!("self != 'index' && !self.matches('{OUTPUT_COLUMN}')"), COLUMNS)
}

/// [`no_column`] for every key of `parameters`.
pub(crate) fn no_columns() -> Value {
    rule(
        format!("self.all(name, name != 'index' && !name.matches('{OUTPUT_COLUMN}'))"),
        COLUMNS,
    )
}

// No rule has the reason FieldValueDuplicate: the API server would then omit its message. The messages below do not contain the name that
// is duplicate: a message built from the object's strings exceeds the API server's cost limit.

/// Rule that no two lists of a product have the same name.
pub(crate) fn distinct_axes() -> Value {
    rule("self.all(axis, self.exists_one(other, other.name == axis.name))", UNIQUE_NAMES)
}

/// Rule that no list of a product has the name of a parameter.
pub(crate) fn axes_apart_from_parameters() -> Value {
    rule_of_field(
        "!has(self.product) || !has(self.parameters) || self.product.all(axis, !(axis.name in self.parameters))",
        UNIQUE_NAMES,
        ".product",
    )
}

pub(crate) fn ordered_bounds() -> Value {
    rule_of_field("self.min < self.max", &format!("{ORDERED_BOUNDS}: lower min or raise max"), ".min")
}

/// Adds the rule that an interval's minimum is positive. A transform, since `extend` on a field would replace the rules of the field's type.
pub(crate) fn positive_minimum(schema: &mut Schema) {
    let added = rule_of_field("self.min > 0.0", POSITIVE_MINIMUM, ".min");
    match schema.get_mut(VALIDATIONS).and_then(Value::as_array_mut) {
        Some(rules) => rules.push(added),
        None => {
            schema.insert(VALIDATIONS.to_owned(), json!([added]));
        }
    }
}
