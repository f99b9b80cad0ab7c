//! Writes the `CustomResourceDefinition` files: `sahasra-crds DIRECTORY...`.

use std::{env, fs, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let directories: Vec<String> = env::args().skip(1).collect();
    if directories.is_empty() {
        eprintln!("usage: sahasra-crds DIRECTORY...  (writes one YAML file a kind into each)");
        return ExitCode::from(2);
    }
    for directory in &directories {
        for (name, yaml) in sahasra_crds::yaml::files() {
            let path = Path::new(directory).join(name);
            if let Err(error) = fs::write(&path, yaml) {
                eprintln!("cannot write {}: {error}", path.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
