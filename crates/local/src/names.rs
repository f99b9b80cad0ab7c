//! Validation of names, labels and finalizers, with the API server's messages. The functions return all violations.

use std::sync::LazyLock;

use regex::Regex;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const CONFIG_KEY: &str = r"[-._a-zA-Z0-9]+";

fn whole(pattern: &str) -> Regex {
    Regex::new(&format!("^({pattern})$")).expect("a constant pattern")
}

static LABELS: LazyLock<Regex> = LazyLock::new(|| whole(LABEL));
static SUBDOMAINS: LazyLock<Regex> = LazyLock::new(|| whole(SUBDOMAIN));
static QUALIFIEDS: LazyLock<Regex> = LazyLock::new(|| whole(QUALIFIED));
static CONFIG_KEYS: LazyLock<Regex> = LazyLock::new(|| whole(CONFIG_KEY));

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

fn violations(text: &str, limit: usize, pattern: &Regex, message: impl FnOnce() -> String) -> Vec<String> {
    let long = (text.len() > limit).then(|| too_long(limit));
    let other = (!pattern.is_match(text)).then(message);
    long.into_iter().chain(other).collect()
}

/// Checks a DNS label of at most 63 characters, such as a namespace's name.
pub(crate) fn label(name: &str) -> Vec<String> {
    violations(name, 63, &LABELS, || {
        if SUBDOMAINS.is_match(name) {
            return "must not contain dots".to_owned();
        }
        format!(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an \
             alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{LABEL}')"
        )
    })
}

/// Checks a DNS subdomain of at most 253 characters, such as the names of most objects.
pub(crate) fn subdomain(name: &str) -> Vec<String> {
    violations(name, 253, &SUBDOMAINS, || {
        format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end \
             with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN}')"
        )
    })
}

/// Checks a qualified name, such as the key of a label or a finalizer.
pub(crate) fn qualified(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<&str> = name.split('/').collect();
    let short = match parts[..] {
        [short] => short,
        [prefix, short] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(subdomain(prefix).into_iter().map(|text| format!("prefix part {text}")));
            }
            short
        }
        _ => {
            return vec![format!(
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED}') \
                 with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if short.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if short.len() > 63 {
        wrong.push(format!("name part {}", too_long(63)));
    }
    if !QUALIFIEDS.is_match(short) {
        wrong.push(format!(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
             character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED}')"
        ));
    }
    wrong
}

pub(crate) fn label_value(value: &str) -> Vec<String> {
    if value.is_empty() {
        return Vec::new();
    }
    violations(value, 63, &QUALIFIEDS, || {
        format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
             with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
             '({QUALIFIED})?')"
        )
    })
}

pub(crate) fn config_key(key: &str) -> Vec<String> {
    let mut wrong = violations(key, 253, &CONFIG_KEYS, || {
        format!(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or \
             'key-name', regex used for validation is '{CONFIG_KEY}')"
        )
    });
    if key == "." {
        wrong.push("must not be '.'".to_owned());
    } else if key == ".." {
        wrong.push("must not be '..'".to_owned());
    } else if key.starts_with("..") {
        wrong.push("must not start with '..'".to_owned());
    }
    wrong
}

/// Checks a segment of a path. Every update checks the name of its object with this rule.
pub(crate) fn path_segment(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    let forbidden = ["/", "%"].into_iter().filter(|part| name.contains(part));
    forbidden.map(|part| format!("may not contain '{part}'")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_and_invalid_names_are_distinguished() {
        assert!(subdomain("a.b-c").is_empty() && label("a-b").is_empty());
        assert_eq!(label("a.b"), ["must not contain dots"]);
        assert!(subdomain("Upper")[0].contains("RFC 1123 subdomain"));
        assert!(qualified("sahasra.dev/release-vram").is_empty());
        assert!(qualified("a/b/c")[0].starts_with("a qualified name"));
        assert!(!label_value("-").is_empty() && label_value("").is_empty());
        assert!(!config_key("a b").is_empty() && config_key("a.ptx").is_empty());
    }
}
