//! Where the programs are: the control plane, kubectl and helm from `e2e/build-tools` (or `KUBEBUILDER_ASSETS`), and the
//! workspace's own binaries.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::sync::OnceCell;

/// Folder with etcd, kube-apiserver and kubectl to use instead of building them, as controller-runtime's envtest has it.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";
/// Folder with `sahasra-operator`, `sahasra-worker`, `sahasra-gateway` and `sahasra` to use instead of building them.
const BINARIES_VARIABLE: &str = "SAHASRA_BIN_DIR";

/// Why a program could not be found or built.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A builder could not be started.
    #[error("run {}", program.display())]
    Run {
        /// The builder.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A builder failed; it said why on stderr.
    #[error("{what} could not be built: see the lines above")]
    Build {
        /// What was to be built.
        what: String,
    },
    /// A folder named by an environment variable lacks a program.
    #[error("{variable}={} has no {program}", folder.display())]
    Missing {
        /// The environment variable.
        variable: &'static str,
        /// The folder that it names.
        folder: PathBuf,
        /// What is not there.
        program: &'static str,
    },
    /// The test executable's own path is not `TARGET/PROFILE/deps/NAME`.
    #[error("cannot tell the cargo profile from {}", executable.display())]
    Profile {
        /// The executable.
        executable: PathBuf,
    },
}

/// The programs of a control plane.
#[derive(Debug, Clone)]
pub struct ControlPlaneTools {
    /// etcd.
    pub etcd: PathBuf,
    /// kube-apiserver.
    pub api_server: PathBuf,
    /// kube-controller-manager; envtest's folders have none, and then nothing collects garbage.
    pub controller_manager: Option<PathBuf>,
}

/// The workspace's root folder.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let e2e = Path::new(env!("CARGO_MANIFEST_DIR"));
    e2e.parent().unwrap_or(e2e)
}

/// etcd, kube-apiserver and kube-controller-manager: from `KUBEBUILDER_ASSETS` if that is set, else built once from the
/// pinned Go modules (about five minutes the first time; stderr says so).
///
/// # Errors
/// When the folder lacks one, or the build fails.
pub async fn control_plane() -> Result<ControlPlaneTools, ToolError> {
    if let Some(folder) = folder_from(ASSETS_VARIABLE) {
        let find = |program| existing(ASSETS_VARIABLE, &folder, program);
        return Ok(ControlPlaneTools {
            etcd: find("etcd")?,
            api_server: find("kube-apiserver")?,
            controller_manager: find("kube-controller-manager").ok(),
        });
    }
    let folder = built("controlplane").await?.with_file_name("");
    Ok(ControlPlaneTools {
        etcd: folder.join("etcd"),
        api_server: folder.join("kube-apiserver"),
        controller_manager: Some(folder.join("kube-controller-manager")),
    })
}

/// kubectl: from `KUBEBUILDER_ASSETS` if that has one, else built with the control plane.
///
/// # Errors
/// When the build fails.
pub async fn kubectl() -> Result<PathBuf, ToolError> {
    match folder_from(ASSETS_VARIABLE).map(|folder| existing(ASSETS_VARIABLE, &folder, "kubectl")) {
        Some(Ok(path)) => Ok(path),
        Some(Err(_)) | None => built("kubectl").await,
    }
}

/// helm, built from its pinned Go module.
///
/// # Errors
/// When the build fails.
pub async fn helm() -> Result<PathBuf, ToolError> {
    built("helm").await
}

async fn built(tool: &'static str) -> Result<PathBuf, ToolError> {
    static CONTROL_PLANE: OnceCell<PathBuf> = OnceCell::const_new();
    static KUBECTL: OnceCell<PathBuf> = OnceCell::const_new();
    static HELM: OnceCell<PathBuf> = OnceCell::const_new();
    let cell = match tool {
        "controlplane" => &CONTROL_PLANE,
        "kubectl" => &KUBECTL,
        _ => &HELM,
    };
    cell.get_or_try_init(|| async {
        let builder = workspace_root().join("e2e/build-tools");
        let output = Command::new(&builder)
            .args(["--print", tool])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .await
            .map_err(|source| ToolError::Run {
                program: builder.clone(),
                source,
            })?;
        if !output.status.success() {
            return Err(ToolError::Build { what: tool.to_owned() });
        }
        Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
    })
    .await
    .cloned()
}

/// The folder with `sahasra-operator`, `sahasra-worker` and `sahasra`: `SAHASRA_BIN_DIR`, or the target folder of the profile in
/// use, after a `cargo build` of all there (which does nothing when they are fresh).
///
/// # Errors
/// When the folder lacks one, or the build fails.
pub async fn binaries() -> Result<PathBuf, ToolError> {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    BUILT.get_or_try_init(find_binaries).await.cloned()
}

/// What the tests run.
const BINARIES: [&str; 4] = ["sahasra-operator", "sahasra-worker", "sahasra-gateway", "sahasra"];

async fn find_binaries() -> Result<PathBuf, ToolError> {
    if let Some(folder) = folder_from(BINARIES_VARIABLE) {
        for program in BINARIES {
            existing(BINARIES_VARIABLE, &folder, program)?;
        }
        return Ok(folder);
    }
    let (target, profile) = target_and_profile()?;
    let cargo = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    // `--workspace` gives the dependencies the features that `cargo test --workspace` gives them: nothing is built twice.
    let status = Command::new(&cargo)
        .args(["build", "--quiet", "--workspace"])
        .args(BINARIES.iter().flat_map(|program| ["--bin", program]))
        .args(["--profile", if profile == "debug" { "dev" } else { &profile }])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(workspace_root())
        .stdin(Stdio::null())
        .status()
        .await
        .map_err(|source| ToolError::Run { program: cargo, source })?;
    if !status.success() {
        return Err(ToolError::Build { what: BINARIES.join(", ") });
    }
    Ok(target.join(profile))
}

/// Target folder and profile folder of the running executable: `TARGET/PROFILE/deps/TEST` or `TARGET/PROFILE/BINARY`.
fn target_and_profile() -> Result<(PathBuf, String), ToolError> {
    let executable = std::env::current_exe().unwrap_or_default();
    let folder = executable.parent();
    let folder = folder.and_then(|folder| if folder.ends_with("deps") { folder.parent() } else { Some(folder) });
    let parts = folder.and_then(|folder| Some((folder.parent()?, folder.file_name()?.to_str()?)));
    let (target, profile) = parts.ok_or_else(|| ToolError::Profile {
        executable: executable.clone(),
    })?;
    Ok((target.to_owned(), profile.to_owned()))
}

fn folder_from(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn existing(variable: &'static str, folder: &Path, program: &'static str) -> Result<PathBuf, ToolError> {
    let path = folder.join(program);
    if path.is_file() {
        Ok(path)
    } else {
        Err(ToolError::Missing {
            variable,
            folder: folder.to_owned(),
            program,
        })
    }
}
