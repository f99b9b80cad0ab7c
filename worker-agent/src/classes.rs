//! Classes of devices: names for kinds of hardware (`h100`, `g5`, `cpu`). A table maps a device's model and the labels of its node to a
//! class and to the device's allocatable memory.

use std::collections::BTreeMap;

use regex::Regex;
use sahasra_crds::{VramQuantity, quantity::QuantityError};
use sahasra_names::{Backend, ClassName};
use serde::Deserialize;

use crate::devices::DeviceDescription;

/// Rules that assign a class to a device. The first rule that matches applies. Without a match, well-known models get their usual short
/// names and other models their own name, turned into a valid label value.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ClassTable {
    /// Rules, in the order in which they are tried.
    #[serde(default)]
    pub classes: Vec<ClassRule>,
}

/// Rule that matches a device when its model and all labels of its node match.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassRule {
    pub class: ClassName,
    /// Pattern for the model that the driver reports: `*` matches any text, and case is ignored.
    #[serde(default)]
    pub model: Option<String>,
    /// Labels that the node must have, with patterns for their values.
    #[serde(default)]
    pub node_labels: BTreeMap<String, String>,
    /// Limit of allocatable memory per matching device. Default: all of the device's allocatable memory.
    #[serde(default)]
    pub memory: Option<VramQuantity>,
}

#[derive(Debug, thiserror::Error)]
pub enum ClassError {
    #[error("invalid class table")]
    Syntax(#[from] sahasra_crds::yaml::ParseError),
    #[error("classes[{place}].class: {class:?} must be 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends")]
    Name {
        /// Index of the rule, from 0.
        place: usize,
        class: ClassName,
    },
    /// The rule has no condition and would match every device.
    #[error("classes[{place}]: class {class:?} sets neither model nor nodeLabels")]
    Empty {
        /// Index of the rule, from 0.
        place: usize,
        class: ClassName,
    },
    #[error("classes[{place}].memory")]
    Memory {
        /// Index of the rule, from 0.
        place: usize,
        source: QuantityError,
    },
    #[error("classes[{place}].memory: must be at least 1Mi")]
    TooLittle {
        /// Index of the rule, from 0.
        place: usize,
    },
}

const MEBIBYTE: u64 = 1 << 20;

/// Patterns of well-known models, and their classes.
const MODELS: &[(&str, &str)] = &[
    ("*GB200*", "gb200"),
    ("*B200*", "b200"),
    ("*GH200*", "gh200"),
    ("*H200*", "h200"),
    ("*H100*", "h100"),
    ("*A100*", "a100"),
    ("*A10G*", "a10g"),
    ("*L40S*", "l40s"),
    ("*L40*", "l40"),
    ("*L4", "l4"),
    ("*T4", "t4"),
    ("*V100*", "v100"),
];

/// Whether text fits a pattern, in which `*` matches any text. Case is ignored.
fn fits(pattern: &str, text: &str) -> bool {
    let pattern = regex::escape(&pattern.to_lowercase()).replace(r"\*", ".*");
    Regex::new(&format!("(?s)^{pattern}$")).is_ok_and(|pattern| pattern.is_match(&text.to_lowercase()))
}

/// Turns text into a label value of at most 63 characters: lowercase, with a hyphen for each run of other characters.
fn label(text: &str) -> String {
    let mut label = String::new();
    for character in text.chars().map(|character| character.to_ascii_lowercase()) {
        if character.is_ascii_alphanumeric() {
            label.push(character);
        } else if !label.is_empty() && !label.ends_with('-') {
            label.push('-');
        }
    }
    label.truncate(63);
    label.trim_end_matches('-').to_owned()
}

impl ClassTable {
    /// Parses and validates a YAML class table.
    pub fn parse(text: &str) -> Result<Self, ClassError> {
        let table: Self = sahasra_crds::yaml::parse(text)?;
        for (place, rule) in table.classes.iter().enumerate() {
            let class = rule.class.clone();
            if class.is_empty() || label(&class) != *class {
                return Err(ClassError::Name { place, class });
            }
            if rule.model.is_none() && rule.node_labels.is_empty() {
                return Err(ClassError::Empty { place, class });
            }
            let bytes = rule.memory.as_ref().map(VramQuantity::bytes).transpose();
            let bytes = bytes.map_err(|source| ClassError::Memory { place, source })?;
            if bytes.is_some_and(|bytes| bytes < MEBIBYTE) {
                return Err(ClassError::TooLittle { place });
            }
        }
        Ok(table)
    }

    fn rule(&self, device: &DeviceDescription, node_labels: &BTreeMap<String, String>) -> Option<&ClassRule> {
        self.classes.iter().find(|rule| {
            rule.model.as_deref().is_none_or(|model| fits(model, &device.model))
                && rule
                    .node_labels
                    .iter()
                    .all(|(name, pattern)| node_labels.get(name).is_some_and(|value| fits(pattern, value)))
        })
    }

    /// Returns the allocatable memory in bytes of a device on a node with these labels.
    pub fn lent_bytes(&self, device: &DeviceDescription, node_labels: &BTreeMap<String, String>) -> u64 {
        let memory = self.rule(device, node_labels).and_then(|rule| rule.memory.as_ref());
        let bytes = memory.and_then(|memory| memory.bytes().ok());
        bytes.map_or(device.allocatable_bytes, |bytes| bytes.min(device.allocatable_bytes))
    }

    pub fn class(&self, device: &DeviceDescription, node_labels: &BTreeMap<String, String>) -> ClassName {
        if let Some(rule) = self.rule(device, node_labels) {
            return rule.class.clone();
        }
        match device.kind {
            Backend::Cpu => device.kind.to_string().into(),
            Backend::Cuda => match MODELS.iter().find(|(pattern, _)| fits(pattern, &device.model)) {
                Some((_, class)) => (*class).into(),
                None if label(&device.model).is_empty() => "gpu".into(),
                None => label(&device.model).into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(kind: Backend, model: &str) -> DeviceDescription {
        DeviceDescription {
            name: "device".into(),
            kind,
            ordinal: 0,
            model: model.to_owned(),
            total_bytes: 0,
            allocatable_bytes: 0,
            context_bytes: 0,
            lanes: 1,
        }
    }

    #[test]
    fn patterns_fit_whole_texts_whatever_the_case() {
        for (pattern, text, expected) in [
            ("*h100*", "NVIDIA H100 80GB HBM3", true),
            ("nvidia*hbm3", "NVIDIA H100 80GB HBM3", true),
            ("h100", "NVIDIA H100", false),
            ("*L4", "NVIDIA L40S", false),
            ("*L4", "NVIDIA L4", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
            ("", "x", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let table = ClassTable::parse(
            "classes:\n- {class: g5, model: '*A10G*', nodeLabels: {node.kubernetes.io/instance-type: 'g5.*'}}\n\
             - {class: big, nodeLabels: {size: big}}\n",
        )
        .unwrap();
        let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let a10g = device(Backend::Cuda, "NVIDIA A10G");
        assert_eq!(
            &*table.class(&a10g, &labels(&[("node.kubernetes.io/instance-type", "g5.xlarge")])),
            "g5"
        );
        assert_eq!(&*table.class(&a10g, &labels(&[])), "a10g");
        assert_eq!(&*table.class(&device(Backend::Cpu, "CPU"), &labels(&[("size", "big")])), "big");
        assert_eq!(&*table.class(&device(Backend::Cpu, "CPU"), &labels(&[])), "cpu");
        assert_eq!(
            &*table.class(&device(Backend::Cuda, "Quadro RTX 4000 (x)"), &labels(&[])),
            "quadro-rtx-4000-x"
        );
    }

    #[test]
    fn wrong_tables_are_refused_with_the_field() {
        for (rule, expected) in [
            ("{class: Big, model: x}", "classes[1].class: \"Big\" must be"),
            ("{class: big}", "classes[1]: class \"big\" sets neither model nor nodeLabels"),
            (
                "{class: big, model: x, memory: much}",
                "classes[1].memory: invalid quantity \"much\"",
            ),
            ("{class: big, model: x, memory: 1Ki}", "classes[1].memory: must be at least 1Mi"),
            ("{class: big, modle: x}", "classes[1]: unknown field `modle`"),
            ("{class: big, nodeLabels: {a: [b]}}", "classes[1].nodeLabels.a: invalid type"),
            ("{model: x}", "classes[1]: missing field `class`"),
        ] {
            let error = ClassTable::parse(&format!("classes: [{{class: ok, model: x}}, {rule}]")).unwrap_err();
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(source) = cause {
                text = format!("{text}: {source}");
                cause = source.source();
            }
            assert!(text.contains(expected), "{rule}: {text}");
        }
        assert_eq!(ClassTable::parse("{}").unwrap(), ClassTable::default());
    }

    #[test]
    fn a_rule_may_say_how_much_is_lent_and_never_more_than_there_is() {
        let table = ClassTable::parse(
            "classes:\n- {class: shared, model: '*A10G*', nodeLabels: {pool: shared}, memory: 8Gi}\n\
             - {class: g5, model: '*A10G*', memory: 1Ti}\n",
        )
        .unwrap();
        let a10g = DeviceDescription {
            allocatable_bytes: 20 << 30,
            ..device(Backend::Cuda, "NVIDIA A10G")
        };
        let shared = BTreeMap::from([("pool".to_owned(), "shared".to_owned())]);
        assert_eq!(table.lent_bytes(&a10g, &shared), 8 << 30);
        assert_eq!(table.lent_bytes(&a10g, &BTreeMap::new()), 20 << 30);
        assert_eq!(ClassTable::default().lent_bytes(&a10g, &shared), 20 << 30);
    }
}
