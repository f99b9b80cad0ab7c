//! Required form of the metrics that a process exports.

use prometheus::{Registry, proto::MetricType};

/// Names without prefix that other programs rely on. The operator alone exports them. Two are counters that do not end in `_total`.
const FIXED: [&str; 6] = [
    "gpu_leases_active",
    "gpu_submit_total",
    "gpu_submit_errors",
    "chunks_done",
    "chunks_retry_total",
    "gpu_vram_allocated_bytes",
];

/// Violations of the rules of `promtool check metrics`, and names without the prefix `sahasra_`, in a registry. A registry omits metrics
/// without a sample, so they are not checked.
/// `expected` contains the names of metrics that must be present.
pub fn problems(registry: &Registry, expected: &[&str]) -> Vec<String> {
    let mut problems = Vec::new();
    let families = registry.gather();
    for name in expected {
        if !families.iter().any(|family| family.name() == *name) {
            problems.push(format!("{name}: not there from the start"));
        }
    }
    for family in &families {
        let (name, kind) = (family.name(), family.get_field_type());
        let mut wrong = |what: &str| problems.push(format!("{name}: {what}"));
        if family.help().is_empty() {
            wrong("no help text");
        }
        if !name
            .chars()
            .all(|character| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_')
        {
            wrong("the name is not snake_case");
        }
        let is_fixed = FIXED.contains(&name);
        if !is_fixed && !name.starts_with("sahasra_") && !name.starts_with("process_") {
            wrong("the name does not begin with sahasra_");
        }
        if !is_fixed && (kind == MetricType::COUNTER) != name.ends_with("_total") {
            wrong("counters, and nothing else, end in _total");
        }
        if ["_count", "_sum", "_bucket"].iter().any(|reserved| name.ends_with(reserved)) {
            wrong("the suffix belongs to histograms");
        }
        let unit = |unit: &&str| name.split('_').any(|word| word == *unit);
        if let Some(unit) = ["milliseconds", "ms", "mib", "kilobytes", "megabytes", "minutes", "percent"]
            .iter()
            .find(|word| unit(word))
        {
            wrong(&format!("{unit} is no base unit"));
        }
    }
    problems
}

/// Differences between the metrics of a registry and a table of metrics in a page of the docs. `table` is the first cell of the table's
/// header. Names are in backticks in the first cell of each row, with labels in braces. The metrics of every process may be absent from the
/// table.
pub fn undocumented(registry: &Registry, page: &str, table: &str) -> Vec<String> {
    let head = format!("| {table} | |");
    let rows = page
        .lines()
        .skip_while(|line| *line != head)
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    let documented: Vec<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|name| name.split('{').next().unwrap_or(name))
        .collect();
    let families = registry.gather();
    let shown: Vec<&str> = families
        .iter()
        .map(|family| family.name())
        .filter(|name| !name.starts_with("process_") && !name.ends_with("_build_info"))
        .collect();
    let missing = shown.iter().filter(|name| !documented.contains(name));
    let missing = missing.map(|name| format!("{name} is in no row of the table {table}"));
    let invented = documented.iter().filter(|name| !shown.contains(name));
    missing.chain(invented.map(|name| format!("{name} does not exist"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::{IntCounter, IntGauge};
    use sahasra_service::metrics::registry;

    #[test]
    fn violations_are_reported() {
        let registry = Registry::new();
        for name in ["sahasra_chunks", "sahasra_wait_ms_total", "waits_total"] {
            registry.register(Box::new(IntCounter::new(name, "Help.").unwrap())).unwrap();
        }
        registry
            .register(Box::new(IntGauge::new("sahasra_Share_count", "Help.").unwrap()))
            .unwrap();
        let mut found = problems(&registry, &["absent"]);
        found.sort();
        assert_eq!(
            found,
            [
                "absent: not there from the start",
                "sahasra_Share_count: the name is not snake_case",
                "sahasra_Share_count: the suffix belongs to histograms",
                "sahasra_chunks: counters, and nothing else, end in _total",
                "sahasra_wait_ms_total: ms is no base unit",
                "waits_total: the name does not begin with sahasra_",
            ]
        );
    }

    #[test]
    fn a_table_of_metrics_is_compared_with_the_registry() {
        let registry = registry("test").unwrap();
        for name in ["chunks_total", "waits_total"] {
            registry.register(Box::new(IntCounter::new(name, "Help.").unwrap())).unwrap();
        }
        let page = "text\n| Agent | |\n|---|---|\n| `chunks_total{code}`, `gone_total` | `words` |\n\n| `waits_total` | |\n";
        assert_eq!(
            undocumented(&registry, page, "Agent"),
            ["waits_total is in no row of the table Agent", "gone_total does not exist"]
        );
    }
}
