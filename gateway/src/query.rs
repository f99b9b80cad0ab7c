//! Query string of a request: validation, and the part that is forwarded to the API server.

use url::form_urlencoded;

use crate::refusal::Refusal;

/// A query in which every name is known and occurs once.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Fails if a name is not in `known`, or occurs twice.
    pub(crate) fn parse(query: &str, known: &[&str]) -> Result<Self, Refusal> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let problem = match known {
                    [] => "is not supported: this path has no parameters".to_owned(),
                    known => format!("is not supported: expected one of {}", known.join(", ")),
                };
                // Truncated, because the name comes from outside and becomes part of the answer.
                let name: String = name.chars().take(64).collect();
                return Err(Refusal::field(format!("query.{name}"), problem));
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(Refusal::field(format!("query.{name}"), "is set more than once: set it once"));
            }
            pairs.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(pairs))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The value of `name`, which must be a whole number from `first` to `last`; `None` if the query has no such name.
    pub(crate) fn number(&self, name: &str, first: u64, last: u64) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if (first..=last).contains(&number) => Ok(Some(number)),
            _ => Err(Refusal::field(
                format!("query.{name}"),
                format!("expected a whole number from {first} to {last}"),
            )),
        }
    }

    /// Encodes these parameters and `more` as the query string of another request.
    pub(crate) fn and(&self, more: &[(&str, &str)]) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(&self.0).extend_pairs(more);
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_duplicate_and_invalid_parameters_are_rejected_by_name() {
        let known = ["waitFor", "timeoutSeconds"];
        let query = Query::parse("waitFor=Placed&timeoutSeconds=30", &known).unwrap();
        assert_eq!(query.get("waitFor"), Some("Placed"));
        assert_eq!(query.number("timeoutSeconds", 1, 300).unwrap(), Some(30));
        for (wrong, said) in [
            (
                "waitfor=Placed",
                "query.waitfor: is not supported: expected one of waitFor, timeoutSeconds",
            ),
            ("waitFor=a&waitFor=b", "query.waitFor: is set more than once"),
        ] {
            let refusal = Query::parse(wrong, &known).unwrap_err().to_string();
            assert!(refusal.starts_with(said), "{refusal}");
        }
        for wrong in ["0", "301", "-1", "1.5", "ten", ""] {
            let query = Query::parse(&format!("timeoutSeconds={wrong}"), &known).unwrap();
            assert!(query.number("timeoutSeconds", 1, 300).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_forwarded_value_changes_another_parameter() {
        let query = Query::parse("labelSelector=a%3Db%26watch%3D1", &["labelSelector"]).unwrap();
        assert_eq!(query.and(&[("limit", "5")]), "labelSelector=a%3Db%26watch%3D1&limit=5");
    }
}
