//! Generates an export for each name of symbols.txt that the sources do not implement, and gives all of them the version of the library.

use sahasra_cuda_boundary::build::{self, Names};

fn main() {
    build::name_library("libcudart.so.13");
    build::version_symbols();
    let names = Names::read(
        "symbols.txt",
        &[("../cuda-runtime/src/api", "sahasra_cuda_runtime::api"), ("src/api", "crate::api")],
    );
    // Forms whose default stream is one of each thread: here all streams of a context are in one order, which both forms allow.
    let same = |name: &str| {
        let base = name.strip_suffix("_ptsz").or(name.strip_suffix("_ptds"))?;
        names.implemented.get(base).map(|module| format!("{module}::{base}"))
    };
    let item = |name: &str, _: Option<&str>| match same(name) {
        Some(path) => build::alias(name, &path),
        None => build::export(
            name,
            "sahasra_cuda_runtime::Error",
            &format!("sahasra_cuda_runtime::missing(\"{name}\")"),
        ),
    };
    names.write_missing("symbols.rs", item, "");
}
