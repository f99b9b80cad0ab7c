//! Finds or builds programs: the control plane, kubectl and helm by `e2e/build-tools` (or in `KUBEBUILDER_ASSETS`), and the workspace's own
//! binaries.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::sync::OnceCell;

/// Environment variable with a folder that has etcd, kube-apiserver and kubectl, such as one of controller-runtime's envtest. If set, the
/// programs are not built.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";
/// Environment variable with a folder that has `sahasra-operator`, `sahasra-worker`, `sahasra-gateway` and `sahasra`. If set, the programs
/// are not built.
const BINARIES_VARIABLE: &str = "SAHASRA_E2E_BIN_DIR";

/// A program could not be found or built.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The build script or cargo could not be started.
    #[error("run {}", program.display())]
    Run {
        program: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// A build failed and reported the reason on stderr.
    #[error("{what} could not be built: see the lines above")]
    Build {
        /// Programs to be built.
        what: String,
    },
    /// The folder in an environment variable lacks a program.
    #[error("{variable}={} has no {program}", folder.display())]
    Missing {
        variable: &'static str,
        folder: PathBuf,
        program: &'static str,
    },
    /// The path of the test executable does not have the form `TARGET/PROFILE/deps/NAME`.
    #[error("cannot tell the cargo profile from {}", executable.display())]
    Profile {
        /// Path of the test executable.
        executable: PathBuf,
    },
}

/// Paths of the programs of a control plane.
#[derive(Debug, Clone)]
pub struct ControlPlaneTools {
    pub etcd: PathBuf,
    pub api_server: PathBuf,
    /// kube-controller-manager. The folders of envtest have none; without it, no garbage is collected.
    pub controller_manager: Option<PathBuf>,
}

/// The workspace's root folder.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let e2e = Path::new(env!("CARGO_MANIFEST_DIR"));
    e2e.parent().unwrap_or(e2e)
}

/// Returns etcd, kube-apiserver and kube-controller-manager: from `KUBEBUILDER_ASSETS` if set, or else built once from the pinned Go modules
/// (which takes about five minutes the first time and is reported on stderr).
///
/// # Errors
/// When the folder lacks a program, or the build fails.
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

/// Returns kubectl: from `KUBEBUILDER_ASSETS` if that folder has one, or else built together with the control plane.
///
/// # Errors
/// When the build fails.
pub async fn kubectl() -> Result<PathBuf, ToolError> {
    match folder_from(ASSETS_VARIABLE).map(|folder| existing(ASSETS_VARIABLE, &folder, "kubectl")) {
        Some(Ok(path)) => Ok(path),
        Some(Err(_)) | None => built("kubectl").await,
    }
}

/// Returns helm, built from its pinned Go module.
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

/// Returns the folder with `sahasra-operator`, `sahasra-worker`, `sahasra-gateway` and `sahasra`: `SAHASRA_E2E_BIN_DIR`, or the target folder of
/// the current profile after a `cargo build` of these programs (which does nothing if they are up to date).
///
/// # Errors
/// When the folder lacks a program, or the build fails.
pub async fn binaries() -> Result<PathBuf, ToolError> {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    BUILT.get_or_try_init(find_binaries).await.cloned()
}

/// Programs that the tests start.
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
    // `--workspace` selects the same features of dependencies as `cargo test --workspace`, so that nothing is built twice.
    let mut build = Command::new(&cargo);
    // The description of a package that Cargo passes to tests would make build scripts that read it run again.
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_") {
            build.env_remove(name);
        }
    }
    let status = build
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

/// Returns target and profile folder of the running executable, which is `TARGET/PROFILE/deps/TEST` or `TARGET/PROFILE/BINARY`.
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
