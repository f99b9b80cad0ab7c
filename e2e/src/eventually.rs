//! Polling, for conditions that cannot be watched.

use std::time::{Duration, Instant};

use crate::process::POLL_INTERVAL;

/// Polls `probe` until it returns `Some`, for at most `within`; returns `None` if it never does. To wait for an object, use a watch instead
/// (`kube::runtime::wait::await_condition`).
pub async fn eventually<T>(within: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(answer) = probe().await {
            return Some(answer);
        }
        if started.elapsed() > within {
            return None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
