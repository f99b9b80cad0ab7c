//! `sahasra run`: runs the bursts of manifests in a pool of its own, and leaves nothing behind.
//!
//! 1. Read the manifests and create the folder of `--results`; errors in them end the run here.
//! 2. Start a pool with the devices that the manifests ask for.
//! 3. Create the objects, those that others refer to first.
//! 4. Follow them until they end, and show progress; Ctrl-C and `--timeout` end the run as well.
//! 5. Show the results, delete the objects that hold slices, check that every ledger is empty, stop the pool.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::OptionFuture};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams},
    core::NamespaceResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use sahasra_crds::{BurstJob, VramLease};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    apply,
    args::{PoolArgs, RunArgs, RunOutput, Structure},
    exit::Exit,
    interrupt, leak_check,
    manifests::{self, Kind, Manifest},
    output,
    pool::{Devices, Pool, PoolSettings, WorkerSettings, create_namespace},
};

mod folder;
mod follow;
mod progress;
mod report;
mod results;

use folder::Folder;
use follow::{Counted, Ending, Following};
use progress::Progress;
use results::ResultsError;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &RunArgs) -> Exit {
    match prepare(arguments) {
        Ok((manifests, folder)) => crate::on_runtime(perform(arguments, folder.as_ref(), &manifests)),
        Err(error) => Exit::Refused.because(&error),
    }
}

/// Reads the manifests and prepares the folder for the results before anything runs: an unusable folder must not cost the results of hours.
fn prepare(arguments: &RunArgs) -> Result<(Vec<Manifest>, Option<Folder>), String> {
    let manifests = manifests::read(&arguments.files, &arguments.namespace).map_err(|error| error.to_string())?;
    let bursts = manifests.iter().filter(|manifest| manifest.kind == Kind::BurstJob).count();
    if arguments.output == RunOutput::Csv && bursts != 1 {
        return Err(format!(
            "-o csv is for one BurstJob; there are {bursts}: --results FOLDER keeps those of each"
        ));
    }
    let folder = arguments.results.as_deref().map(|path| Folder::prepare(path, &manifests));
    let folder = folder.transpose().map_err(|error| error.to_string())?;
    Ok((manifests, folder))
}

async fn perform(arguments: &RunArgs, folder: Option<&Folder>, manifests: &[Manifest]) -> Exit {
    let interrupt = match interrupt::listen() {
        Ok(interrupt) => interrupt,
        Err(error) => return Exit::Failed.because(&format!("failed to install signal handlers: {error}")),
    };
    let pool = match Pool::start(settings(&arguments.pool, arguments.devices, manifests)).await {
        Ok(pool) => pool,
        Err(error) => return Exit::Failed.because(&sahasra_service::causes(&error)),
    };
    let mut exit = create(&pool, manifests).await;
    let created = exit == Exit::Success;
    if created {
        let mut following = Following::default();
        for manifest in manifests {
            let key = (manifest.namespace.clone(), manifest.name.clone());
            match manifest.kind {
                Kind::BurstJob => following.burst(key),
                Kind::VramLease => following.lease(key),
                Kind::Namespace | Kind::ConfigMap | Kind::Secret => {}
            }
        }
        let timeout = OptionFuture::from(arguments.timeout.map(tokio::time::sleep));
        let stopped = tokio::select! {
            () = follow(&pool, &mut following) => None,
            exit = interrupt => {
                output::say("\ninterrupted: releasing all slices (Ctrl-C again exits at once)");
                Some(exit)
            }
            Some(()) = timeout => {
                output::say("\ntimed out: releasing all slices");
                Some(Exit::TimedOut)
            }
        };
        let outcome = show(&pool, &following, arguments, folder).await;
        exit = stopped.unwrap_or(outcome);
    }
    delete_all(&pool).await;
    let (text, proven) = leak_check::of(&pool).await;
    if arguments.output == RunOutput::Table && created {
        exit = exit.max(output::print(&format!("\n{text}")));
    } else if created || proven != Exit::Success {
        output::say(text.trim_end());
    }
    pool.stop().await;
    if proven == Exit::Success { exit } else { exit.max(proven) }
}

/// Settings of a pool for these manifests: if no class is given on the command line, the CPU engine emulates the classes that the manifests
/// ask for.
fn settings(arguments: &PoolArgs, devices: u32, manifests: &[Manifest]) -> PoolSettings {
    let mut classes: BTreeSet<String> = arguments.class.iter().cloned().collect();
    if classes.is_empty() {
        let asked = manifests
            .iter()
            .filter_map(|manifest| manifest.object.pointer("/spec/slice/class").and_then(Value::as_str));
        classes.extend(asked.map(str::to_owned));
    }
    let worker = |class: Option<String>| WorkerSettings {
        class,
        devices: if arguments.gpu { Devices::Gpus } else { Devices::Cpu(devices) },
        vram_bytes: Some(arguments.vram),
    };
    let workers = if classes.is_empty() || arguments.gpu {
        vec![worker(None)]
    } else {
        classes.into_iter().map(|class| worker(Some(class))).collect()
    };
    PoolSettings {
        workers,
        file_store_root: arguments.file_store_root.clone(),
        ..PoolSettings::default()
    }
}

async fn create(pool: &Pool, manifests: &[Manifest]) -> Exit {
    // On a cluster the namespaces of the manifests exist already; in this control plane they are created here.
    let declared = |name: &str| {
        manifests
            .iter()
            .any(|manifest| manifest.kind == Kind::Namespace && manifest.name == name)
    };
    let named: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.namespace.as_str()).collect();
    for namespace in named.into_iter().filter(|name| !name.is_empty() && !declared(name)) {
        if let Err(error) = create_namespace(&pool.client, namespace).await {
            return Exit::Refused.because(&sahasra_service::causes(&error));
        }
    }
    for manifest in manifests {
        if let Err(error) = apply::create(&pool.client, manifest).await {
            return Exit::Refused.because(&error.to_string());
        }
    }
    Exit::Success
}

/// Observes the objects whenever one changes, and polls the operator's statistics, until all objects have ended.
async fn follow(pool: &Pool, following: &mut Following) {
    let bursts: Api<BurstJob> = Api::all(pool.client.clone());
    let leases: Api<VramLease> = Api::all(pool.client.clone());
    let mut burst_events = watcher(bursts.clone(), watcher::Config::default()).default_backoff().boxed();
    let mut lease_events = watcher(leases.clone(), watcher::Config::default()).default_backoff().boxed();
    let mut progress = Progress::new();
    loop {
        let now = Instant::now();
        let list = ListParams::default();
        if let (Ok(bursts), Ok(leases)) = (bursts.list(&list).await, leases.list(&list).await) {
            following.observe(bursts.items, leases.items, now);
        }
        let snapshot = following.snapshot(counted(pool));
        if following.endings().is_some() {
            progress.end(&snapshot, now);
            return;
        }
        progress.show(&snapshot, now);
        let tick = following
            .wake()
            .map_or(POLL_INTERVAL, |wake| wake.saturating_duration_since(now).min(POLL_INTERVAL));
        tokio::select! {
            _ = burst_events.next() => {}
            _ = lease_events.next() => {}
            () = tokio::time::sleep(tick.max(Duration::from_millis(1))) => {}
        }
    }
}

fn counted(pool: &Pool) -> Counted {
    let metrics = &pool.operator.metrics;
    Counted {
        held: metrics.slices_held(),
        succeeded: metrics.chunks_succeeded.load(Ordering::Relaxed),
        failed: metrics.chunks_failed.load(Ordering::Relaxed),
        retried: metrics.chunks_retried.get(),
    }
}

async fn show(pool: &Pool, following: &Following, arguments: &RunArgs, folder: Option<&Folder>) -> Exit {
    let mut exit = Exit::Success;
    let endings = following.endings().unwrap_or_default();
    if endings.is_empty() {
        for line in following.stopped(counted(pool)) {
            output::say(&line);
        }
    }
    for (key, ending) in &endings {
        exit = exit.max(match ending {
            Ending::Complete | Ending::Gone => Exit::Success,
            Ending::Failed(_) => Exit::Failed,
            Ending::Refused(_) => Exit::Refused,
            Ending::Unplaceable(_) => Exit::Unplaceable,
        });
        let job = following.bursts().find(|(known, _)| *known == key);
        match (job, ending) {
            (Some((_, job)), _) => {
                let text = report::burst(job, ending, arguments.results.as_deref());
                if arguments.output == RunOutput::Table {
                    exit = exit.max(output::print(&format!("\n{text}")));
                } else if *ending != Ending::Complete {
                    output::say(text.trim_end());
                }
            }
            (None, Ending::Unplaceable(why)) => output::say(&format!("VramLease {}/{}: {why}", key.0, key.1)),
            (None, _) => output::say(&format!("VramLease {}/{}: granted", key.0, key.1)),
        }
    }
    let jobs: Vec<&BurstJob> = following.bursts().map(|(_, job)| job).collect();
    for job in &jobs {
        exit = exit.max(hand_over(pool, job, arguments, folder).await);
    }
    let wanted = arguments.output == RunOutput::Csv || arguments.results.is_some();
    for (key, _) in endings.iter().filter(|(_, ending)| wanted && *ending == Ending::Gone) {
        exit = exit.max(Exit::Failed.because(&ResultsError::Job(key.1.clone()).to_string()));
    }
    exit.max(match arguments.output {
        RunOutput::Json => output::structured(Structure::Json, &results::objects(&jobs)),
        RunOutput::Yaml => output::structured(Structure::Yaml, &results::objects(&jobs)),
        RunOutput::Table | RunOutput::Csv => Exit::Success,
    })
}

/// Prints the results of a job's chunks (`-o csv`) or writes them to the folder of `--results`. Returns [`Exit::Failed`] when requested
/// results are missing, because the ConfigMaps with the results end with the pool.
async fn hand_over(pool: &Pool, job: &BurstJob, arguments: &RunArgs, folder: Option<&Folder>) -> Exit {
    let mut exit = Exit::Success;
    let state = job.status.as_ref().and_then(|status| status.state.as_deref());
    let ended = matches!(state, Some("Complete" | "Failed"));
    let prints = arguments.output == RunOutput::Csv;
    let mut lines = None;
    if ended && (prints || arguments.results.is_some()) {
        match results::lines(&pool.client, job).await {
            Ok(found) => lines = Some(found),
            // Results in a store outlive the pool; a burst without kept results has none to write.
            Err(error @ (ResultsError::Elsewhere { .. } | ResultsError::NotKept(_))) if !prints => output::say(&error.to_string()),
            // No message: the report of the burst already says that it failed.
            Err(ResultsError::None(_)) if state == Some("Failed") => {}
            Err(error) => exit = Exit::Failed.because(&sahasra_service::causes(&error)),
        }
    }
    if prints && let Some(found) = lines.take() {
        let text: String = found.collect();
        exit = exit.max(output::print(&text));
        lines = Some(Box::new(std::iter::once(text)));
    }
    if let Some(folder) = folder
        && let Err(error) = folder.keep(job, lines)
    {
        exit = Exit::Failed.because(&error.to_string());
    }
    exit
}

/// Deletes all bursts and leases, so that the operator releases their slices.
pub(crate) async fn delete_all(pool: &Pool) {
    delete_every::<BurstJob>(&pool.client).await;
    delete_every::<VramLease>(&pool.client).await;
}

/// Deletes all objects of a kind, and returns how many there are. Those with finalizers remain for a while.
pub(crate) async fn delete_every<K>(client: &Client) -> usize
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let all: Api<K> = Api::all(client.clone());
    let found = all.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    for object in found.iter().filter(|object| object.meta().deletion_timestamp.is_none()) {
        let objects: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
        let _ = objects.delete(&object.name_any(), &DeleteParams::default()).await;
    }
    found.len()
}
