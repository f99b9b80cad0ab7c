//! Generates an export for each name of symbols.txt that the sources do not implement.

use sahasra_cuda_boundary::build::{self, Names};

fn main() {
    build::name_library("libnvidia-ml.so.1");
    let names = Names::read("symbols.txt", &[("src/api", "crate::api")]);
    let item = |name: &str, word: Option<&str>| {
        let answer = match word {
            Some("absent") => "crate::state::absent()".to_owned(),
            Some(word) => panic!("{word} behind {name} has no meaning"),
            None => build::not_supported(name),
        };
        build::export(name, "crate::status::Status", &answer)
    };
    names.write_missing("symbols.rs", item, "");
}
