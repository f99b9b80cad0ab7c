//! Writes what is generated from the types. Without arguments, in the repository's root: `crds/*.yaml` and `docs/api.md`.
//! With `DIRECTORY...`: the definitions alone, one YAML file a kind, into each.

use std::{env, fs, io, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let directories: Vec<String> = env::args().skip(1).collect();
    match write_all(&directories) {
        Ok(()) => ExitCode::SUCCESS,
        Err((path, error)) => {
            eprintln!("cannot write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all(directories: &[String]) -> Result<(), (String, io::Error)> {
    let mut files = Vec::new();
    if directories.is_empty() {
        files.push((Path::new("docs").join("api.md"), sahasra_crds::reference::markdown()));
    }
    let root = ["crds".to_owned()];
    for directory in if directories.is_empty() { &root } else { directories } {
        files.extend(
            sahasra_crds::yaml::files()
                .into_iter()
                .map(|(name, yaml)| (Path::new(directory).join(name), yaml)),
        );
    }
    for (path, text) in files {
        fs::write(&path, text).map_err(|error| (path.display().to_string(), error))?;
    }
    Ok(())
}
