//! Writes what is generated from the types, in the repository's root: the chart's definitions, one YAML file a kind, and `docs/api.md`.

use std::{fs, io, path::Path, process::ExitCode};

fn main() -> ExitCode {
    match write_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err((path, error)) => {
            eprintln!("cannot write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all() -> Result<(), (String, io::Error)> {
    let at = |path: &Path, result: io::Result<()>| result.map_err(|error| (path.display().to_string(), error));
    let chart = Path::new("helm/sahasra/files/crds");
    // A kind that was removed leaves no file.
    at(chart, fs::remove_dir_all(chart))?;
    at(chart, fs::create_dir(chart))?;
    for (name, yaml) in sahasra_crds::yaml::files() {
        let path = chart.join(name);
        at(&path, fs::write(&path, yaml))?;
    }
    let reference = Path::new("docs/api.md");
    at(reference, fs::write(reference, sahasra_crds::reference::markdown()))
}
