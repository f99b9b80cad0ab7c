//! Generates an export for each name of symbols.txt that the sources do not implement, and the table of all exports. Names the library as
//! programs look for it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=src/api");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // A program may close the library while threads of its queues run.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1,-z,nodelete");
    }
    let implemented = implemented(Path::new("src/api"));
    let symbols = fs::read_to_string("symbols.txt").expect("symbols.txt is beside build.rs");
    let mut stubs = String::new();
    let mut table = String::new();
    let mut count = 0;
    for line in symbols.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let version = match words.next() {
            Some(version) => version.parse().expect("the second word is a version"),
            None if name.ends_with("_v2") => 3020,
            None => 0,
        };
        let address = match implemented.get(name) {
            Some(module) => format!("crate::api::{module}::{name}"),
            None => {
                writeln!(
                    stubs,
                    "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> crate::status::Status {{ crate::missing::call(\"{name}\") }}"
                )
                .expect("a string takes any text");
                name.to_owned()
            }
        };
        writeln!(
            table,
            "    Symbol {{ name: \"{name}\", version: {version}, address: {address} as *const () }},"
        )
        .expect("a string takes any text");
        count += 1;
    }
    for name in implemented.keys() {
        assert!(
            symbols.lines().any(|line| line.split_whitespace().next() == Some(name)),
            "{name} is not in symbols.txt"
        );
    }
    let implemented = implemented.len();
    let code = format!(
        "{stubs}\n#[cfg(test)]\nconst IMPLEMENTED: usize = {implemented};\n\npub(crate) static SYMBOLS: [Symbol; {count}] = [\n{table}];\n"
    );
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("symbols.rs"), code).expect("OUT_DIR is writable");
}

/// Names of the exported functions, with the module in which each is.
fn implemented(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("src/api is a folder") {
        let path = entry.expect("src/api is readable").path();
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let text = fs::read_to_string(&path).expect("sources are readable");
        for line in text.lines() {
            let declaration = line.trim_start().strip_prefix("fn cu");
            if let Some((name, _)) = declaration.and_then(|rest| rest.split_once('('))
                && name.starts_with(|first: char| first.is_ascii_uppercase())
            {
                found.insert(format!("cu{name}"), module.clone());
            }
        }
    }
    found
}
