//! [`Launcher`], which starts session executors as processes: the agent's own program with the arguments `executor session`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures::future::BoxFuture;
use sahasra_executor_protocol::probe::PluginPlatform;
use sahasra_executor_protocol::program_cache::ProgramCache;
use sahasra_executor_protocol::session::status_page::StatusPage;
use sahasra_names::{Backend, Engine, Requirement};

use super::launch::{Launch, LaunchError};
use super::process::Process;
use crate::child::{
    ask::ask,
    spawn::{self, Spawner},
};
use crate::devices::DeviceDescription;

/// Timeout for a plugin to load and open its device.
const PROBE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Launcher {
    spawner: Spawner,
    plugin: Option<(PathBuf, PluginPlatform)>,
    cache: Option<ProgramCache>,
    /// Name of the [`MemorySocket`](crate::api::memory_socket::MemorySocket) where clients on this machine get shared memory. Without it,
    /// executors share no memory with clients.
    memory_socket: Option<String>,
}

impl Launcher {
    /// Creates a launcher that starts `program` with the arguments `executor session`. With a plugin, the devices that it drives get the
    /// engine `xla`; a short-lived process probes first whether the plugin loads. A plugin that fails is logged and left out. Compiled
    /// programs are kept in `cache`.
    ///
    /// # Errors
    /// When the thread that starts processes cannot be created.
    pub async fn start(
        program: PathBuf,
        plugin: Option<PathBuf>,
        cache: Option<ProgramCache>,
        memory_socket: Option<String>,
    ) -> io::Result<Self> {
        let plugin = match plugin {
            Some(path) => match probe(&program, &path).await {
                Ok(platform) => {
                    tracing::info!(plugin = %path.display(), platform = platform.name, version = platform.version, "engine xla");
                    Some((path, platform))
                }
                Err(reason) => {
                    tracing::warn!(plugin = %path.display(), reason, "failed to probe the PJRT plugin, engine xla is disabled");
                    None
                }
            },
            None => None,
        };
        let spawner = Spawner::start(program)?;
        Ok(Self {
            spawner,
            plugin,
            cache,
            memory_socket,
        })
    }

    /// Returns the arguments that name the plugin and the folder of compiled programs: the one of the session's namespace, which no other
    /// namespace can open.
    fn plugin_arguments(&self, namespace: &str) -> Vec<String> {
        let plugin = self.plugin.iter().map(|(path, _)| format!("--plugin={}", path.display()));
        let mut arguments: Vec<String> = plugin.collect();
        match self.cache.as_ref().map(|cache| cache.of_namespace(namespace)) {
            Some(Ok(folder)) => arguments.extend([
                format!("--program-cache-dir={}", folder.path.display()),
                format!("--program-cache-limit-bytes={}", folder.limit_bytes),
            ]),
            Some(Err(error)) => {
                tracing::warn!(namespace, %error, "failed to open the program cache of a session: its programs are kept in memory only");
            }
            None => {}
        }
        arguments
    }
}

impl Launch for Launcher {
    fn engines(&self, backend: Backend) -> Vec<Engine> {
        let is_supported = |engine: &Engine| match engine.requirement() {
            None => true,
            Some(Requirement::PjrtPlugin) => self.plugin.as_ref().is_some_and(|(_, platform)| drives(platform, backend)),
        };
        Engine::ALL.iter().copied().filter(is_supported).collect()
    }

    fn launch<'a>(
        &'a self,
        device: &'a DeviceDescription,
        namespace: &'a str,
        engine: Engine,
        limit_bytes: u64,
    ) -> BoxFuture<'a, Result<Process, LaunchError>> {
        Box::pin(async move {
            if !self.engines(device.kind).contains(&engine) {
                return Err(LaunchError::NoEngine {
                    device: device.name.clone(),
                    engine: engine.to_string(),
                });
            }
            let socket = self.memory_socket.iter().map(|name| format!("--shared-memory-socket={name}"));
            let mut more: Vec<String> = socket.chain([format!("--context-bytes={}", device.context_bytes)]).collect();
            let needs_scratch = match engine.requirement() {
                None => false,
                Some(Requirement::PjrtPlugin) => {
                    more.extend(self.plugin_arguments(namespace));
                    // Compilers of GPU programs exchange files with their tools, so the session needs a scratch folder.
                    device.kind.is_gpu()
                }
            };
            let scratch = needs_scratch.then(|| tempfile::Builder::new().prefix("sahasra-session-").tempdir());
            let scratch = scratch.transpose()?;
            let folder = scratch.as_ref().map(|scratch| scratch.path().to_owned());
            let (status_page, file) = StatusPage::create()?;
            let add = move |command: &mut Command| {
                command.arg(format!("--engine={engine}")).args(more);
                if let Some(folder) = folder {
                    command.arg("--scratch-dir").arg(&folder).env("TMPDIR", &folder);
                }
            };
            let started = self.spawner.executor("session", device.arguments(limit_bytes), file, add).await?;
            Ok(Process::new(status_page, scratch, started)?)
        })
    }

    fn trim_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.trim();
        }
    }
}

fn drives(platform: &PluginPlatform, backend: Backend) -> bool {
    let name = platform.name.to_ascii_lowercase();
    match backend {
        Backend::Cpu => matches!(name.as_str(), "cpu" | "host"),
        Backend::Cuda => matches!(name.as_str(), "cuda" | "gpu"),
    }
}

/// Loads the plugin in a separate process of `program`, so that a crash or a hang affects nothing else, and returns its platform.
///
/// # Errors
/// The reason why the plugin does not serve.
pub async fn probe(program: &Path, plugin: &Path) -> Result<PluginPlatform, String> {
    let mut command = spawn::command(program, "probe-plugin");
    command.arg(plugin).stderr(Stdio::null());
    ask(command, PROBE).await.unwrap_or_else(|error| Err(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_serves_the_devices_that_it_drives() {
        let platform = |name: &str| PluginPlatform {
            name: name.to_owned(),
            version: String::new(),
        };
        assert!(drives(&platform("cpu"), Backend::Cpu) && !drives(&platform("cpu"), Backend::Cuda));
        assert!(drives(&platform("CUDA"), Backend::Cuda) && !drives(&platform("cuda"), Backend::Cpu));
        assert!(!drives(&platform("tpu"), Backend::Cpu));
    }
}
