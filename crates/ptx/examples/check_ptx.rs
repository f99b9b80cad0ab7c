//! Loads PTX files and prints what they contain, or why they do not load: a quick check without a launch.
//!
//! ```text
//! cargo run --example check_ptx -- FILE...
//! ```

use std::process::ExitCode;

use sahasra_ptx::Module;

fn main() -> ExitCode {
    let mut outcome = ExitCode::SUCCESS;
    for path in std::env::args().skip(1) {
        let loaded = std::fs::read_to_string(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| Module::load(&text).map_err(|error| error.to_string()));
        match loaded {
            Ok(module) => {
                for kernel in module.entries() {
                    println!(
                        "{path}: {}: {} parameters in {} bytes, {} bytes of shared and {} of local memory, at most {} threads a block",
                        kernel.name(),
                        kernel.parameters().len(),
                        kernel.parameter_bytes(),
                        kernel.static_shared_bytes(),
                        kernel.local_bytes(),
                        kernel.max_threads()
                    );
                }
            }
            Err(error) => {
                eprintln!("{path}: {error}");
                outcome = ExitCode::FAILURE;
            }
        }
    }
    outcome
}
