//! The PJRT plugin of the pool: where it is, and whether sessions can use it.

use std::path::{Path, PathBuf};

use sahasra_executor_protocol::probe::PluginPlatform;
use sahasra_names::Engine;
use sahasra_worker::session_executors::launcher::probe;

use crate::pool::Pool;

/// State of the PJRT plugin of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// No plugin is set or installed.
    NoPlugin,
    /// Devices of this pool have the engine.
    Yes(PathBuf),
    /// The plugin drives devices of another platform.
    OtherDevices { plugin: PathBuf, platform: String },
    /// The file is not a plugin, or cannot open its device.
    Fails { plugin: PathBuf, reason: String },
}

impl Serves {
    /// Finds out what the devices of a pool report. Loads the plugin again if none of them has its engine, for the reason.
    pub(super) async fn ask(pool: &Pool, plugin: Option<PathBuf>) -> Self {
        let Some(plugin) = plugin else { return Self::NoPlugin };
        if pool.has_engine(Engine::Xla).await {
            return Self::Yes(plugin);
        }
        let outcome = probe(Path::new("/proc/self/exe"), &plugin).await;
        Self::without_devices(plugin, outcome)
    }

    /// Why no device has the engine, given the plugin's answer when it is loaded.
    fn without_devices(plugin: PathBuf, outcome: Result<PluginPlatform, String>) -> Self {
        match outcome {
            Ok(platform) => Self::OtherDevices {
                plugin,
                platform: platform.name,
            },
            Err(reason) => Self::Fails { plugin, reason },
        }
    }

    /// Line about sessions in the message that `sahasra up` prints once the pool is ready.
    pub(super) fn line(&self) -> String {
        match self {
            Self::NoPlugin => "Sessions run kernels; for JAX functions there is no PJRT plugin (--pjrt-plugin FILE; crates/pjrt/plugin in the sources installs one).".to_owned(),
            Self::Yes(plugin) => format!("Sessions run JAX functions by the plugin {}, and kernels.", plugin.display()),
            Self::OtherDevices { plugin, platform } => format!(
                "Sessions run kernels, but no JAX functions: the plugin {} drives devices of platform {platform}, of which this pool has none.",
                plugin.display()
            ),
            Self::Fails { plugin, reason } => format!(
                "Sessions run kernels, but no JAX functions: the plugin {} does not serve: {reason}.",
                plugin.display()
            ),
        }
    }
}

/// Returns the PJRT plugin for CPUs in the folder `lib` beside that of the program, if it is installed.
pub(super) fn installed(program: &Path) -> Option<PathBuf> {
    let plugin = program.parent()?.parent()?.join("lib/pjrt_c_api_cpu_plugin.so");
    plugin.is_file().then_some(plugin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_that_is_installed_with_the_program_is_found() {
        let prefix = tempfile::tempdir().unwrap();
        let program = prefix.path().join("bin/sahasra");
        let library = prefix.path().join("lib");
        std::fs::create_dir(&library).unwrap();
        assert_eq!(installed(&program), None);
        let plugin = library.join("pjrt_c_api_cpu_plugin.so");
        std::fs::write(&plugin, "").unwrap();
        assert_eq!(installed(&program), Some(plugin));
    }

    #[test]
    fn a_plugin_that_no_device_uses_is_not_promised() {
        let plugin = PathBuf::from("/p.so");
        let platform = PluginPlatform {
            name: "cuda".to_owned(),
            version: String::new(),
        };
        let line = Serves::without_devices(plugin.clone(), Ok(platform)).line();
        assert!(
            line.contains("no JAX functions") && line.contains("/p.so drives devices of platform cuda"),
            "{line}"
        );
        let line = Serves::without_devices(plugin.clone(), Err("invalid ELF header".to_owned())).line();
        assert!(
            line.contains("no JAX functions") && line.contains("/p.so does not serve: invalid ELF header"),
            "{line}"
        );
        assert!(Serves::Yes(plugin).line().contains("run JAX functions by the plugin /p.so"));
    }
}
