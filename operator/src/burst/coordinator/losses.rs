//! Counts chunks as lost: those of broken streams, of lost workers, and of a burst that is suspended.

use std::collections::BTreeSet;

use sahasra_wire::burst::FailureCode;

use super::{Coordinator, streams::RESUME_WITHIN};
use crate::burst::account::DeviceKey;

impl Coordinator {
    /// Counts the chunks of streams that have been broken for too long as lost.
    pub(super) fn lose_broken(&mut self, now: u64) {
        let overdue: Vec<String> = (self.streams.iter_mut())
            .filter_map(|(worker, stream)| {
                stream
                    .broken_since
                    .take_if(|since| *since + RESUME_WITHIN <= now)
                    .map(|_| worker.clone())
            })
            .collect();
        for worker in overdue {
            self.lose_worker(&worker, "connection to the agent lost, and reconnecting timed out");
        }
    }

    pub(super) fn lose_worker(&mut self, worker: &str, why: &str) {
        if let Some(stream) = self.streams.get_mut(worker) {
            stream.broken_since = None;
        }
        self.account.forget(worker);
        let keys = self.keys_of(worker);
        self.lose(&keys, FailureCode::Disconnected, why);
    }

    pub(super) fn lose(&mut self, keys: &[DeviceKey], code: FailureCode, why: &str) {
        let outcome = self.account.lost(keys, code, why, self.context.clock.now());
        let attempts = outcome.retried + outcome.failed;
        if attempts > 0 {
            let (worker, device) = (keys.first().map(|key| &key.worker), keys.first().map(|key| &key.device));
            tracing::warn!(worker, device, devices = keys.len(), chunks = attempts, %code, why, "chunks lost");
            self.context.metrics.submit_failed(code.label(), attempts);
            self.context.metrics.chunks_retried.inc_by(outcome.retried);
            self.context.metrics.chunks_counted(0, outcome.failed);
        }
        keys.iter().for_each(|key| self.recount(key));
    }

    /// Closes every stream and counts its chunks as lost.
    pub(super) fn lose_all_streams(&mut self) {
        let workers: BTreeSet<String> = std::mem::take(&mut self.streams).into_keys().collect();
        workers.iter().for_each(|worker| self.account.forget(worker));
        let mut keys: Vec<DeviceKey> = workers.iter().map(|worker| DeviceKey::unknown(worker)).collect();
        keys.extend(self.devices.keys().filter(|key| workers.contains(&key.worker)).cloned());
        self.lose(&keys, FailureCode::Disconnected, "the burst was suspended");
    }
}
