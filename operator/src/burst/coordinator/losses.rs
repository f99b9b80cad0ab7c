//! Counts chunks as lost: those of broken streams, of lost workers, and of a burst that is suspended.

use std::{collections::BTreeSet, time::Duration};

use sahasra_names::{DeviceId, WorkerName};
use sahasra_wire::burst::FailureCode;

use super::{Coordinator, streams::RESUME_WITHIN};
use crate::burst::account::FailureOutcome;

impl Coordinator {
    /// Counts the chunks of streams that have been broken for too long as lost.
    pub(super) fn lose_broken(&mut self, now: Duration) {
        let overdue: Vec<WorkerName> = (self.streams.iter_mut())
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

    pub(super) fn lose_worker(&mut self, worker: &WorkerName, why: &str) {
        if let Some(stream) = self.streams.get_mut(worker) {
            stream.broken_since = None;
        }
        self.account.forget(worker);
        let devices = self.devices_of(worker);
        self.lose(&devices, FailureCode::Disconnected, why);
    }

    pub(super) fn lose(&mut self, devices: &[DeviceId], code: FailureCode, why: &str) {
        let outcome = self.account.lost(devices, code, why, self.now());
        let attempts = outcome.retried + outcome.failed;
        if attempts > 0 {
            let (worker, device) = devices.first().map(|id| (&*id.worker, &*id.device)).unzip();
            tracing::warn!(worker, device, devices = devices.len(), chunks = attempts, %code, why, "chunks lost");
            self.count_failed(attempts, code, outcome);
        }
    }

    pub(super) fn count_failed(&self, attempts: u64, code: FailureCode, outcome: FailureOutcome) {
        self.context.metrics.submit_failed(code.label(), attempts);
        self.context.metrics.chunks_retried.inc_by(outcome.retried);
        self.context.metrics.chunks_counted(0, outcome.failed);
    }

    /// Closes every stream and counts its chunks as lost.
    pub(super) fn lose_all_streams(&mut self) {
        let workers: BTreeSet<WorkerName> = std::mem::take(&mut self.streams).into_keys().collect();
        workers.iter().for_each(|worker| self.account.forget(worker));
        let devices = self.devices.keys().filter(|id| workers.contains(&id.worker));
        let devices: Vec<DeviceId> = devices.cloned().collect();
        self.lose(&devices, FailureCode::Disconnected, "the burst was suspended");
    }
}
