//! Start of the process of an executor that runs chunks.

use std::io;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use sahasra_executor_protocol::burst::status_page::StatusPage;
use sahasra_executor_protocol::clock::monotonic_now;
use sahasra_service::tasks;

use super::launch::Launcher;
use super::process::Process;
use crate::child::{spawn::Spawner, stderr};
use crate::devices::DeviceDescription;

impl Launcher for Spawner {
    fn launch<'a>(&'a self, device: &'a DeviceDescription, _namespace: &'a str) -> BoxFuture<'a, io::Result<Process>> {
        Box::pin(async {
            let (status_page, file) = StatusPage::create()?;
            // The lanes of a burst executor allocate little and share it, so a malloc arena per thread would only cost memory. Session
            // executors do not get this limit: a step of an XLA program allocates on several threads at once, which would wait for each
            // other.
            let add = |command: &mut Command| {
                command.env("MALLOC_ARENA_MAX", "2");
            };
            let started = self.executor("run", device.arguments(device.total_bytes), file, add).await?;
            tasks::spawn(stderr::log(started.stderr));
            Process::child(started.id, started.child, started.socket, Arc::new(status_page))
        })
    }

    fn monotonic_now(&self) -> Duration {
        monotonic_now()
    }
}
