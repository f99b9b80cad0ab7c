//! Waiting for what cannot be watched.

use std::time::{Duration, Instant};

use crate::process::POLL_INTERVAL;

/// Asks `probe` again and again until it answers `Some`, for at most `within`; `None` when it never did. Wait for objects
/// with a watch (`kube::runtime::wait::await_condition`), for everything else with this.
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
