//! Writes the files that are generated from the types: the definitions of the chart, `docs/api.md`, and the Python package's limits of a
//! BurstJob.

use std::{collections::BTreeMap, fs, io, path::Path, process::ExitCode};

fn main() -> ExitCode {
    match write_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err((path, error)) => {
            eprintln!("failed to write {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, (String, io::Error)> {
    result.map_err(|error| (path.display().to_string(), error))
}

fn write_all() -> Result<(), (String, io::Error)> {
    let chart = Path::new("helm/sahasra/files/crds");
    at(chart, fs::create_dir_all(chart))?;
    let files: BTreeMap<String, String> = sahasra_crds::yaml::files().into_iter().collect();
    // A kind that was removed leaves no file.
    for entry in at(chart, fs::read_dir(chart).and_then(Iterator::collect::<io::Result<Vec<_>>>))? {
        if !entry.file_name().to_str().is_some_and(|name| files.contains_key(name)) {
            at(&entry.path(), fs::remove_file(entry.path()))?;
        }
    }
    for (name, yaml) in &files {
        let path = chart.join(name);
        at(&path, fs::write(&path, yaml))?;
    }
    let reference = Path::new("docs/api.md");
    at(reference, fs::write(reference, sahasra_crds::reference::markdown()))?;
    let python = Path::new("python/sahasra/burst_schema.py");
    at(python, fs::write(python, sahasra_crds::reference::python()))
}
