//! Generates an export for each name of symbols.txt that the sources do not implement, and the table of all exports.

use std::fmt::Write;

use sahasra_cuda_boundary::build::{self, Names};

fn main() {
    build::name_library("libcuda.so.1");
    let names = Names::read("symbols.txt", &[("src/api", "crate::api")]);
    let mut table = String::new();
    for (name, version) in &names.listed {
        let version = match version {
            Some(version) => version.parse().expect("the second word is a version"),
            None if name.ends_with("_v2") => 3020,
            None => 0,
        };
        let address = match names.implemented.get(name) {
            Some(module) => format!("{module}::{name}"),
            None => name.clone(),
        };
        writeln!(
            table,
            "    Symbol {{ name: \"{name}\", version: {version}, address: {address} as *const () }},"
        )
        .expect("a string takes any text");
    }
    let (count, implemented) = (names.listed.len(), names.implemented.len());
    let code = format!(
        "\n#[cfg(test)]\nconst IMPLEMENTED: usize = {implemented};\n\npub(crate) static SYMBOLS: [Symbol; {count}] = [\n{table}];\n"
    );
    let item = |name: &str, _: Option<&str>| match names.with_other_default_stream(name) {
        Some(path) => build::alias(name, &path),
        None => build::export(name, "crate::status::Status", &build::not_supported(name)),
    };
    names.write_missing("symbols.rs", item, &code);
}
