//! Generates the exports of all names of symbols.txt.

use sahasra_cuda_boundary::build::{self, Names};

fn main() {
    build::name_library("libnvidia-ml.so.1");
    let names = Names::read("symbols.txt", &[("src/api", "crate::api")]);
    let answer = |name: &str, word: Option<&str>| match word {
        Some("absent") => "crate::state::absent()".to_owned(),
        Some(word) => panic!("{word} behind {name} has no meaning"),
        None => build::not_supported(name),
    };
    Names::write("symbols.rs", &build::redirected(&names, "crate::status::Status", answer));
}
