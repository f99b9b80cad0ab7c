//! `sahasra kernel compile`: compiles CUDA C to PTX.

use std::path::Path;

use super::nvrtc::{Nvrtc, NvrtcError};
use crate::{args::CompileArgs, exit::Exit, output};

pub(crate) fn run(arguments: &CompileArgs) -> Exit {
    match compile(arguments) {
        Ok(exit) => exit,
        Err(error) => {
            output::complain(&format!("{}: {}", arguments.file.display(), sahasra_service::causes(&error)));
            match error {
                CompileError::Nvrtc(NvrtcError::Compile { .. }) | CompileError::Read(_) => Exit::Refused,
                _ => Exit::Failed,
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum CompileError {
    #[error("{0}")]
    Read(#[source] std::io::Error),
    #[error("failed to write {path}: {source}")]
    Write { path: String, source: std::io::Error },
    #[error(transparent)]
    Nvrtc(#[from] NvrtcError),
}

fn compile(arguments: &CompileArgs) -> Result<Exit, CompileError> {
    let source = std::fs::read_to_string(&arguments.file).map_err(CompileError::Read)?;
    let nvrtc = Nvrtc::find(arguments.nvrtc_library.as_deref())?;
    let mut options = vec![format!("--gpu-architecture={}", virtual_architecture(&arguments.arch))];
    let folder = arguments
        .file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let folders = [folder.to_owned()]
        .into_iter()
        .chain(arguments.include.clone())
        .chain(nvrtc.include_folders());
    options.extend(folders.map(|folder| format!("--include-path={}", folder.display())));
    options.extend(arguments.define.iter().map(|define| format!("--define-macro={define}")));
    // Only the file's name is passed on, so that the PTX does not contain the path of the source.
    let name = arguments.file.file_name().unwrap_or(arguments.file.as_os_str()).to_string_lossy();
    let compiled = nvrtc.compile(&name, &source, &options)?;
    if !compiled.log.is_empty() {
        output::say(&compiled.log);
    }
    let target = arguments.output.clone().unwrap_or_else(|| arguments.file.with_extension("ptx"));
    if target == Path::new("-") {
        return Ok(output::print(&compiled.ptx));
    }
    let path = target.display().to_string();
    std::fs::write(&target, &compiled.ptx).map_err(|source| CompileError::Write {
        path: path.clone(),
        source,
    })?;
    output::say(&format!(
        "wrote {path} ({} bytes); look at it with: sahasra kernel check {path}",
        compiled.ptx.len()
    ));
    Ok(Exit::Success)
}

/// Name of the virtual architecture that PTX targets: `compute_80` for any of `sm_80`, `compute_80` and `80`.
fn virtual_architecture(architecture: &str) -> String {
    let number = architecture.trim_start_matches("sm_").trim_start_matches("compute_");
    format!("compute_{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_virtual_ones() {
        for written in ["sm_80", "compute_80", "80"] {
            assert_eq!(virtual_architecture(written), "compute_80");
        }
        assert_eq!(virtual_architecture("sm_90a"), "compute_90a");
    }
}
