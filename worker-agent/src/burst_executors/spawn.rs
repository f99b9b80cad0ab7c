//! Start of the process of an executor that runs chunks.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use sahasra_executor_protocol::burst::status_page::StatusPage;
use sahasra_executor_protocol::clock::monotonic_now;

use super::launch::{Launched, Launcher, Started};
use crate::child::{
    Child,
    spawn::{Spawner, command},
};
use crate::devices::DeviceDescription;

impl Launcher for Spawner {
    fn launch<'a>(&'a self, device: &'a DeviceDescription, _namespace: &'a str) -> BoxFuture<'a, io::Result<Launched>> {
        Box::pin(async { Ok(Launched::process(executor(self, device).await?)) })
    }

    fn monotonic_now(&self) -> Duration {
        monotonic_now()
    }
}

async fn executor(spawner: &Spawner, device: &DeviceDescription) -> io::Result<Started> {
    let arguments = vec![
        format!("--backend={}", device.kind),
        format!("--ordinal={}", device.ordinal),
        format!("--memory-bytes={}", device.total_bytes),
        format!("--threads={}", device.lanes),
        format!("--agent-pid={}", std::process::id()),
    ];
    spawner.on_thread(move |program| start(program, &arguments)).await
}

fn start(program: &Path, arguments: &[String]) -> io::Result<Started> {
    let (socket, theirs) = UnixStream::pair()?;
    let (status_page, file) = StatusPage::create()?;
    let (stderr, child_stderr) = io::pipe()?;
    let child = command(program, "run")
        .args(arguments)
        // The lanes of a burst executor allocate little and share it, so a malloc arena per thread would only cost memory. Session executors do
        // not get this limit: a step of an XLA program allocates on several threads at once, which would wait for each other.
        .env("MALLOC_ARENA_MAX", "2")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(file))
        .stderr(Stdio::from(child_stderr))
        // A process group of its own: an interrupt from the terminal goes to the agent alone, which drains first.
        .process_group(0)
        .spawn()?;
    socket.set_nonblocking(true)?;
    Ok(Started {
        child: Child(Some(child)),
        socket,
        status_page: Arc::new(status_page),
        stderr: Some(stderr.into()),
    })
}
