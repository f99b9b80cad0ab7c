//! Generates an export for each name of symbols.txt that the sources do not implement.

use sahasra_cuda_boundary::build::{self, Names};

fn main() {
    build::name_library("libnvidia-ml.so.1");
    let names = Names::read("symbols.txt", &[("src/api", "crate::api")]);
    let answer = |name: &str, word: Option<&str>| match word {
        Some("absent") => "crate::state::absent()".to_owned(),
        Some(word) => panic!("{word} behind {name} has no meaning"),
        None => build::not_supported(name, None),
    };
    names.write_missing("symbols.rs", "crate::status::Status", answer, "");
}
