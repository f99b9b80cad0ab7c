//! Record of the writes that reached the API server: by whom, and to which objects.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use serde_json::Value;

use crate::{users::Named, world::Node};

/// Counters of writes.
#[derive(Debug, Default)]
pub struct Writes {
    /// Writes of operators, by the burst to which they belong.
    of_bursts: BTreeMap<String, u64>,
    /// Latest writes other than heartbeats and the leader's Lease, for the report.
    last: Vec<(Duration, String)>,
    total: u64,
}

/// Number of latest writes that the report shows.
const REMEMBERED: usize = 64;

impl Writes {
    /// Records a successful request.
    pub fn add(&mut self, now: Duration, from: Node, method: &Method, path: &str, body: &[u8]) {
        if *method == Method::GET {
            return;
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        if parts.contains(&"leases") {
            return;
        }
        self.total += 1;
        if self.last.len() >= REMEMBERED {
            self.last.remove(0);
        }
        self.last.push((now, format!("{from} {method} {path}")));
        if matches!(from, Node::Operator(_))
            && let Some(name) = burst(&parts, body)
        {
            *self.of_bursts.entry(name).or_default() += 1;
        }
    }

    /// Returns the number of writes for a burst.
    pub fn of_burst(&self, name: &Named) -> u64 {
        self.of_bursts.get(&name.to_string()).copied().unwrap_or_default()
    }

    /// Returns the number of all writes except heartbeats and the leader's Lease.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the recorded writes since `then`.
    pub fn since(&self, then: Duration) -> impl Iterator<Item = &str> {
        self.last.iter().filter(move |(at, _)| *at >= then).map(|(_, what)| what.as_str())
    }
}

/// Returns namespace and name of the burst to which a write belongs, whose objects' names start with the burst's name.
fn burst(parts: &[&str], body: &[u8]) -> Option<String> {
    let at = parts
        .iter()
        .position(|part| matches!(*part, "burstjobs" | "vramleases" | "configmaps" | "events"))?;
    let named = parts.get(at + 1).map(|name| (*name).to_owned());
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let name = if parts[at] == "events" {
        let regarding = body.pointer("/regarding/name").or_else(|| body.pointer("/involvedObject/name"));
        regarding.and_then(Value::as_str)?.to_owned()
    } else {
        named.or_else(|| Some(body.pointer("/metadata/name")?.as_str()?.to_owned()))?
    };
    let name = name.strip_suffix("-results").unwrap_or(&name);
    let namespace = parts.get(at.checked_sub(1)?)?;
    name.starts_with("burst-").then(|| format!("{namespace}/{name}"))
}
