//! Releases slices that the burst needs no more: while it is being suspended, and near its end, when it has more slices than chunks.

use std::time::Duration;

use sahasra_crds::conditions::{self, SUSPENDED};

use super::{Coordinator, Hold};
use crate::burst::status::Verdict;

/// Time for which a burst that is being suspended keeps slices without chunks. Meanwhile agents return the chunks that have not
/// started.
const SUSPENDED_AFTER: Duration = Duration::from_millis(100);
/// Time for which a running burst keeps more slices than it has unfinished chunks. Most bursts end within it.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Reason of `Suspended=False` while chunks still run.
const SUSPENDING: &str = "Suspending";

/// The slices that the burst does not need.
#[derive(Debug, Default)]
pub(super) struct Fit {
    /// Whether the claim is limited to the slices that the burst needs.
    limited: bool,
    /// Time at which the slices that the burst does not need are released; `None` if it needs all.
    pub(super) due: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Slices {
    held: u64,
    /// Slices that may be running a chunk.
    busy: u64,
}

/// Numbers of slices to keep on each device: the busy ones, and others, so that there is one for each of `chunks` if possible.
fn kept(devices: &[Slices], chunks: u64) -> Vec<u64> {
    let busy: u64 = devices.iter().map(|device| device.busy).sum();
    let mut spare = chunks.saturating_sub(busy);
    let keep = devices.iter().map(|device| {
        let idle = spare.min(device.held.saturating_sub(device.busy));
        spare -= idle;
        device.busy + idle
    });
    keep.collect()
}

/// Message about the chunks that delay a suspension.
fn still_runs(chunks: u64, devices: u64, timeout: Duration) -> String {
    let (plural, verb) = if chunks == 1 { ("", "runs") } else { ("s", "run") };
    let devices_plural = if devices == 1 { "" } else { "s" };
    format!(
        "{chunks} chunk{plural} still {verb} on {devices} device{devices_plural}; it may take up to chunkTimeoutSeconds ({} s)",
        timeout.as_secs()
    )
}

impl Coordinator {
    /// Releases the slices that the burst does not need, once it has not needed them for a while, and lifts the limit when it needs more.
    pub(super) fn fit_slices(&mut self) {
        let counts = self.account.counts();
        // A burst that is being suspended starts no more chunks.
        let (chunks, wait) = match self.hold {
            // Without a running chunk, all slices are released once the progress is saved.
            Hold::Suspending(_) if counts.running > 0 => (0, SUSPENDED_AFTER),
            Hold::Running if self.started => (counts.pending + counts.running, IDLE_AFTER),
            _ => {
                self.fit.due = None;
                return;
            }
        };
        let held: u64 = self.devices.values().map(|device| device.window.slices()).sum();
        if self.fit.limited && chunks > held {
            self.fit = Fit::default();
            self.resize_claim(held);
            self.context.pool.limit(&self.owner().uid, None);
        }
        if held <= chunks {
            self.fit.due = None;
            return;
        }
        let now = self.now();
        let due = *self.fit.due.get_or_insert(now + wait);
        let keep = kept(&self.slices(), chunks);
        if keep.iter().sum::<u64>() >= held {
            self.fit.due = None;
        } else if due <= now {
            let keep = keep.into_iter().map(|keep| u32::try_from(keep).unwrap_or(u32::MAX));
            let limits = self.devices.keys().cloned().zip(keep).collect();
            tracing::debug!(held, chunks = counts.running, "releasing idle slices");
            self.context.pool.limit(&self.owner().uid, Some(limits));
            self.fit = Fit {
                limited: true,
                due: Some(now + IDLE_AFTER),
            };
        }
    }

    /// The slices of each device, in the order of the devices.
    fn slices(&self) -> Vec<Slices> {
        let slices = self.devices.iter().map(|(key, device)| {
            let held = device.window.slices();
            // Chunks that are counted elsewhere may be on any of the worker's devices.
            let all_busy = self.account.beside(&key.worker) > 0;
            let busy = if all_busy {
                held
            } else {
                device.outstanding(&self.account).min(held)
            };
            Slices { held, busy }
        });
        slices.collect()
    }

    /// The condition `Suspended` of a burst that holds slices, if it changes.
    pub(super) fn suspending(&self) -> Option<Verdict> {
        if matches!(self.hold, Hold::Suspending(_)) && self.view.is_some() {
            let devices = self.devices.values().filter(|device| device.outstanding(&self.account) > 0).count();
            let message = still_runs(self.account.counts().running, devices as u64, self.burst.chunk_timeout);
            return Some(Verdict::new(SUSPENDED, false, SUSPENDING, message));
        }
        if !self.says_suspending() {
            return None;
        }
        Some(match self.hold {
            Hold::Running if self.view.is_some() => Verdict::new(SUSPENDED, false, "Resumed", "spec.suspend is false"),
            _ => Verdict::new(SUSPENDED, false, "Finished", "the burst ended before it was suspended"),
        })
    }

    /// Time from which the status must show that the burst is being suspended; `None` if it does, or if the burst is not being suspended.
    pub(super) fn suspension_report_due(&self, after: Duration) -> Option<Duration> {
        match self.hold {
            Hold::Suspending(until) if !self.says_suspending() => Some(until.saturating_sub(self.drain_timeout()) + after),
            _ => None,
        }
    }

    fn says_suspending(&self) -> bool {
        let condition = conditions::get(&self.status.conditions, SUSPENDED);
        condition.is_some_and(|condition| condition.reason == SUSPENDING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(of: &[(u64, u64)]) -> Vec<Slices> {
        of.iter().map(|(held, busy)| Slices { held: *held, busy: *busy }).collect()
    }

    #[test]
    fn slices_with_chunks_are_kept_but_no_more_than_chunks() {
        // A burst that is being suspended keeps only the slices with chunks.
        assert_eq!(kept(&slices(&[(32, 0), (32, 1)]), 0), [0, 1]);
        // The remaining chunks: one that still runs, and one that waits for its retry.
        assert_eq!(kept(&slices(&[(32, 0), (32, 1)]), 2), [1, 1]);
        assert_eq!(kept(&slices(&[(4, 1), (4, 4)]), 100), [4, 4]);
        assert_eq!(kept(&[], 3), [0; 0]);
    }

    #[test]
    fn the_message_names_chunks_devices_and_the_limit() {
        let timeout = Duration::from_secs(300);
        let message = "1 chunk still runs on 1 device; it may take up to chunkTimeoutSeconds (300 s)";
        assert_eq!(still_runs(1, 1, timeout), message);
        assert!(still_runs(3, 2, timeout).starts_with("3 chunks still run on 2 devices;"));
    }
}
