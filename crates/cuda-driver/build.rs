//! Generates the exports of all names of symbols.txt, and the table of their versions.

use std::fmt::Write;

use sahasra_cuda_boundary::build::{self, Names};

fn main() {
    build::name_library("libcuda.so.1");
    build::search_own_folder();
    let names = Names::read("symbols.txt", &[("src/api", "crate::api")]);
    let mut code = build::redirected(&names, "crate::status::Status", |name, _| build::not_supported(name));
    let mut table = String::new();
    for (name, version) in &names.listed {
        let version = match version {
            Some(version) => version.parse().expect("the second word is a version"),
            None if name.ends_with("_v2") => 3020,
            None => 0,
        };
        writeln!(
            table,
            "    Symbol {{ name: \"{name}\", version: {version}, address: {name} as *const () }},"
        )
        .expect("a string takes any text");
    }
    let (count, implemented) = (names.listed.len(), names.implemented.len());
    code.push_str(&format!(
        "\n#[cfg(test)]\nconst IMPLEMENTED: usize = {implemented};\n\npub(crate) static SYMBOLS: [Symbol; {count}] = [\n{table}];\n"
    ));
    Names::write("symbols.rs", &code);
}
