//! Report of a finished burst as text for the terminal.

use std::{fmt::Write as _, path::Path};

use kube::ResourceExt;
use sahasra_crds::{
    BurstJob,
    burst_job::{
        KeptResults,
        status::{AggregateStatus, BestChunk, ChunkCounts},
    },
};
use sahasra_names::Bytes;
use sahasra_parameters::Scalar;

use super::follow::Ending;

/// Maximum number of elements of a sum or mean that are shown; the status has all of them.
const SHOWN_ELEMENTS: usize = 8;

/// The report on a burst. `folder`: where `--results` puts its results.
pub(super) fn burst(job: &BurstJob, ending: &Ending, folder: Option<&Path>) -> String {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    let mut text = format!("BurstJob {namespace}/{name}: {}\n", headline(job, ending));
    let Some(status) = &job.status else { return text };
    let chunks = &status.chunks;
    if status.slices.peak > 0 {
        let _ = writeln!(
            text,
            "  chunks      {} succeeded, {} failed, {} retried",
            chunks.succeeded, chunks.failed, chunks.retried
        );
        let _ = writeln!(text, "  slices      {} at most at the same time", status.slices.peak);
    }
    if let Some(aggregate) = &status.aggregate {
        text.push_str(&self::aggregate(aggregate));
    }
    for failure in &status.failures {
        let _ = writeln!(
            text,
            "  failure     chunk {} after {}: {}: {}",
            failure.index,
            if failure.attempts == 1 {
                "1 attempt".to_owned()
            } else {
                format!("{} attempts", failure.attempts)
            },
            failure.code,
            failure.message
        );
    }
    let listed = i64::try_from(status.failures.len()).unwrap_or_default();
    if chunks.failed > listed && listed > 0 {
        let _ = writeln!(text, "              and {} more: -o yaml has their indexes", chunks.failed - listed);
    }
    if let Some(url) = status.results.as_ref().and_then(|results| results.url.as_ref()) {
        let _ = writeln!(text, "  results     {url}");
    } else if let Some(results) = status.results.as_ref().filter(|results| results.bytes > 0 && are_kept(job, chunks)) {
        let bytes = u64::try_from(results.bytes).unwrap_or_default();
        let _ = writeln!(
            text,
            "  results     {}B{}",
            Bytes(bytes),
            folder.map_or_else(
                || ": -o csv prints them, --results FOLDER keeps them".to_owned(),
                |folder| format!(" go to {}", folder.display())
            )
        );
    }
    text
}

/// Whether the results have rows: of the chunks that succeeded, or with `results: Failed` of those that failed. Without rows, they are a
/// heading alone.
fn are_kept(job: &BurstJob, chunks: &ChunkCounts) -> bool {
    match job.spec.results {
        KeptResults::All => chunks.succeeded > 0,
        KeptResults::Failed => chunks.failed > 0,
        KeptResults::None => false,
    }
}

fn headline(job: &BurstJob, ending: &Ending) -> String {
    match ending {
        Ending::Complete => {
            let status = job.status.as_ref();
            let times = status.and_then(|status| Some((status.start_time.as_ref()?, status.completion_time.as_ref()?)));
            // Times in the status have a resolution of one second, so the duration of a quick burst would be inaccurate.
            match times.map(|(start, end)| end.0.as_second() - start.0.as_second()) {
                Some(seconds) if seconds > 1 => format!("complete after {seconds} s"),
                _ => "complete".to_owned(),
            }
        }
        Ending::Failed(why) => format!("FAILED: {why}"),
        Ending::Refused(why) => format!("rejected: {why}"),
        Ending::Unplaceable(why) => {
            format!(
                "cannot start here: {why}\n  --class, --vram and --devices give this pool other devices; spec.slice and spec.slices.min ask for less"
            )
        }
        Ending::Gone => "deleted by its own ttlSecondsAfterFinished".to_owned(),
    }
}

fn aggregate(aggregate: &AggregateStatus) -> String {
    let mut text = String::new();
    for (rank, best) in aggregate.best.iter().enumerate() {
        let label = if rank == 0 { "best" } else { "" };
        let value = shown(best.exact.as_ref(), best.value);
        let _ = writeln!(text, "  {label:<11} {value} at chunk {}", best.index);
        text.push_str(&parameters(best));
    }
    for (element, value) in aggregate.values.iter().take(SHOWN_ELEMENTS).enumerate() {
        let label = if element == 0 { "aggregate" } else { "" };
        let half = aggregate.confidence95.get(element).copied().flatten();
        let value = match (aggregate.exact.get(element), value, half) {
            (None, Some(value), Some(half)) if half > 0.0 => format!("{value:.*} ± {} (95 %)", decimals(half), rounded(half)),
            (exact, value, Some(half)) => format!("{} ± {} (95 %)", shown(exact, *value), rounded(half)),
            (exact, value, None) => shown(exact, *value),
        };
        let _ = writeln!(text, "  {label:<11} {value}");
    }
    if aggregate.values.len() > SHOWN_ELEMENTS {
        let _ = writeln!(
            text,
            "              and {} elements more: -o yaml",
            aggregate.values.len() - SHOWN_ELEMENTS
        );
    }
    if aggregate.nan > 0 {
        let label = if text.is_empty() { "aggregate" } else { "" };
        let _ = writeln!(text, "  {label:<11} {} of {} results are NaN", aggregate.nan, aggregate.count);
    }
    text
}

/// Formats a value: its exact text if there is one, or else the number.
fn shown(exact: Option<&String>, value: Option<f64>) -> String {
    exact.cloned().or_else(|| value.map(number)).unwrap_or_default()
}

fn parameters(best: &BestChunk) -> String {
    let widest = best.parameters.keys().map(String::len).max().unwrap_or(0);
    let lines = best.parameters.iter().map(|(name, value)| {
        let value = shown(best.exact_parameters.get(name), Some(*value));
        format!("                {name:<widest$}   {value}\n")
    });
    lines.collect()
}

/// Formats a number in the shortest form. Most kernels compute in single precision, whose 0.1 is 0.10000000149011612 in the status. Whole
/// numbers keep all digits: they may be integers.
fn number(value: f64) -> String {
    let single = value as f32;
    let is_integer = value.fract() == 0.0 && value.abs() <= (1_u64 << f64::MANTISSA_DIGITS) as f64;
    let shortest = if f64::from(single) == value && !is_integer {
        Scalar::F32(single)
    } else {
        Scalar::F64(value)
    };
    shortest.to_string()
}

/// Formats half the width of an interval with three significant digits: it is itself an estimate.
fn rounded(half: f64) -> String {
    if half == 0.0 || !half.is_finite() {
        return number(half);
    }
    format!("{half:.*}", decimals(half))
}

/// Number of decimals of an interval of this half width, and of the value in its middle.
fn decimals(half: f64) -> usize {
    (2.0 - half.abs().log10().floor()).clamp(0.0, 17.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_but_integers_exact() {
        let shown = [
            0.1_f32.into(),
            0.1,
            67_108_872.0,
            -123_456_792.0,
            1.0,
            1e30_f32.into(),
            f64::INFINITY,
        ]
        .map(number);
        assert_eq!(shown, ["0.1", "0.1", "67108872", "-123456792", "1", "1e30", "inf"]);
    }

    #[test]
    fn results_without_a_row_are_not_offered() {
        let job = |results: &str, succeeded: i64, failed: i64| -> BurstJob {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "a", "namespace": "default"},
                "spec": {
                    "kernel": {"ptx": {"inline": ""}, "entry": "k", "block": [1], "args": []},
                    "chunks": {"count": 4}, "slice": {"vram": "1Mi"}, "slices": {"max": 1}, "results": results,
                },
                "status": {
                    "chunks": {"total": 4, "pending": 0, "running": 0, "succeeded": succeeded, "failed": failed, "retried": 0},
                    "results": {"configMap": "a-results", "bytes": 4},
                },
            }))
            .unwrap()
        };
        let shown = |job: &BurstJob, folder| burst(job, &Ending::Failed("why".to_owned()), folder);
        let offered = |job: &BurstJob| shown(job, None).contains("-o csv prints them");
        assert!(!offered(&job("All", 0, 4)));
        assert!(offered(&job("All", 1, 3)));
        assert!(offered(&job("Failed", 0, 4)));
        assert!(!offered(&job("Failed", 4, 0)));
    }

    #[test]
    fn single_precision_is_shown_as_it_was_written() {
        assert_eq!(number(f64::from(0.1f32)), "0.1");
        assert_eq!(number(0.1), "0.1");
        assert_eq!(number(32.0), "32");
        assert_eq!(number(std::f64::consts::PI), "3.141592653589793");
    }

    #[test]
    fn the_best_chunk_is_shown_with_its_parameters() {
        let best = BestChunk {
            index: 7,
            value: Some(0.25),
            parameters: [("rate".to_owned(), f64::from(0.1f32)), ("batchSize".to_owned(), 32.0)].into(),
            ..BestChunk::default()
        };
        let shown = aggregate(&AggregateStatus {
            best: vec![best],
            ..AggregateStatus::default()
        });
        assert_eq!(
            shown,
            "  best        0.25 at chunk 7\n                batchSize   32\n                rate        0.1\n"
        );
        let shown = aggregate(&AggregateStatus {
            values: vec![Some(3.5)],
            confidence95: vec![Some(0.5)],
            ..AggregateStatus::default()
        });
        assert_eq!(shown, "  aggregate   3.500 ± 0.500 (95 %)\n");
        // Equal results have an interval without a width.
        let shown = aggregate(&AggregateStatus {
            values: vec![Some(0.0001234)],
            confidence95: vec![Some(0.0)],
            ..AggregateStatus::default()
        });
        assert_eq!(shown, "  aggregate   0.0001234 ± 0 (95 %)\n");
        let shown = aggregate(&AggregateStatus {
            values: vec![Some(1.5), None],
            exact: vec!["1.5".to_owned(), "NaN".to_owned()],
            confidence95: vec![Some(0.5), None],
            count: 3,
            nan: 1,
            ..AggregateStatus::default()
        });
        assert_eq!(
            shown,
            "  aggregate   1.5 ± 0.500 (95 %)\n              NaN\n              1 of 3 results are NaN\n"
        );
        assert_eq!(
            (rounded(0.001_568_866), rounded(1234.5), rounded(0.0)),
            ("0.00157".into(), "1234".into(), "0".into())
        );
    }
}
