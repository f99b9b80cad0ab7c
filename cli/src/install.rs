//! `sahasra install`: this program and the CUDA libraries beside it, in another folder, such as a volume that containers share.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{self, Path, PathBuf},
};

use crate::{args::InstallArgs, exec, exit::Exit, output};

/// Libraries by the names that programs link, in the folder of the CUDA libraries.
const LIBRARIES: [&str; 4] = ["libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnvidia-ml.so.1"];
/// Further names by which programs open them. They are links: the loader opens a file once, whatever its names are.
const LINKS: [(&str, &str); 4] = [
    ("libcuda.so", "libcuda.so.1"),
    ("libsahasra-cuda.so", "libcuda.so.1"),
    ("libcudart.so", "libcudart.so.12"),
    ("libnvidia-ml.so", "libnvidia-ml.so.1"),
];

#[derive(Debug, thiserror::Error)]
enum InstallError {
    #[error("failed to find the file of this program")]
    Program(#[source] io::Error),
    #[error("invalid folder {}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("failed to create {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("failed to copy {} to {}", from.display(), to.display())]
    Copy { from: PathBuf, to: PathBuf, source: io::Error },
}

pub(crate) fn run(arguments: &InstallArgs) -> Exit {
    let libraries = match exec::libraries(arguments.libraries.as_deref()) {
        Ok(libraries) => libraries,
        Err(reason) => return Exit::Failed.because(&reason),
    };
    match install_in(&libraries, &arguments.folder) {
        Ok(folder) => output::print(&format!("export LD_LIBRARY_PATH={}\n", folder.join("lib/sahasra").display())),
        Err(error) => Exit::Failed.because(&sahasra_service::causes(&error)),
    }
}

/// Installs this program in a folder, and returns the folder's absolute path.
fn install_in(libraries: &Path, folder: &Path) -> Result<PathBuf, InstallError> {
    let program = std::env::current_exe().map_err(InstallError::Program)?;
    let folder = path::absolute(folder).map_err(|source| InstallError::Folder {
        path: folder.to_owned(),
        source,
    })?;
    install(&program, libraries, &folder)?;
    Ok(folder)
}

/// Copies the program to `bin` in a folder and the libraries to `lib/sahasra`, where the program finds them.
fn install(program: &Path, libraries: &Path, folder: &Path) -> Result<(), InstallError> {
    let (bin, lib) = (folder.join("bin"), folder.join("lib/sahasra"));
    for path in [&bin, &lib] {
        fs::create_dir_all(path).map_err(|source| InstallError::Create {
            path: path.clone(),
            source,
        })?;
    }
    let copy = |from: &Path, temporary: &Path| fs::copy(from, temporary).map(|_| ());
    replace(program, &bin.join("sahasra"), copy)?;
    for name in LIBRARIES {
        let from = libraries.join(name);
        if from.exists() {
            replace(&from, &lib.join(name), copy)?;
        }
    }
    for (name, file) in LINKS {
        if lib.join(file).exists() {
            replace(Path::new(file), &lib.join(name), |file, temporary| symlink(file, temporary))?;
        }
    }
    Ok(())
}

/// Makes a file and gives it its name. What runs with the former file keeps it.
fn replace(from: &Path, to: &Path, make: impl Fn(&Path, &Path) -> io::Result<()>) -> Result<(), InstallError> {
    let temporary = to.with_extension(format!("part-{}", std::process::id()));
    let made = make(from, &temporary).and_then(|()| fs::rename(&temporary, to));
    made.map_err(|source| {
        let _ = fs::remove_file(&temporary);
        InstallError::Copy {
            from: from.to_owned(),
            to: to.to_owned(),
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_finds_the_installed_libraries() {
        let folder = tempfile::tempdir().unwrap();
        let libraries = folder.path().join("built");
        fs::create_dir(&libraries).unwrap();
        let (program, file) = (folder.path().join("program"), folder.path().join("library"));
        fs::write(&program, "program").unwrap();
        fs::write(&file, "library").unwrap();
        symlink(&file, libraries.join("libcuda.so.1")).unwrap();
        let target = folder.path().join("volume");
        for _ in 0..2 {
            install(&program, &libraries, &target).unwrap();
        }
        let installed = target.join("lib/sahasra/libcuda.so.1");
        assert!(!installed.is_symlink());
        assert_eq!(fs::read_to_string(installed).unwrap(), "library");
        assert_eq!(fs::read_to_string(target.join("bin/sahasra")).unwrap(), "program");
        let count = |path: &str| fs::read_dir(target.join(path)).unwrap().count();
        assert_eq!((count("bin"), count("lib/sahasra")), (1, 3));
        assert_eq!(
            fs::read_link(target.join("lib/sahasra/libcuda.so")).unwrap(),
            Path::new("libcuda.so.1")
        );
        assert!(install(&folder.path().join("none"), &libraries, &target).is_err());
    }
}
