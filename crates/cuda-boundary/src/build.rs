//! For build scripts: the names that a library exports.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

/// Names that a library exports.
pub struct Names {
    /// Lines of `symbols.txt`: a name, and what follows it.
    pub listed: Vec<(String, Option<String>)>,
    /// Names of functions that the sources have, with the path of the module in which each is.
    pub implemented: BTreeMap<String, String>,
}

impl Names {
    /// Reads the list of names, and the sources of folders: `(folder, path)`, with the path of the folder's module.
    ///
    /// # Panics
    /// If a file cannot be read, or a function is not in the list: the build must fail.
    pub fn read(symbols: &str, folders: &[(&str, &str)]) -> Self {
        println!("cargo:rerun-if-changed={symbols}");
        let text = fs::read_to_string(symbols).expect("the list of symbols is readable");
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let listed = lines.map(|line| match line.split_once(' ') {
            Some((name, rest)) => (name.to_owned(), Some(rest.trim().to_owned())),
            None => (line.to_owned(), None),
        });
        let listed: Vec<_> = listed.collect();
        let mut implemented = BTreeMap::new();
        for (folder, path) in folders {
            println!("cargo:rerun-if-changed={folder}");
            read_folder(Path::new(folder), path, &mut implemented);
        }
        for name in implemented.keys() {
            assert!(listed.iter().any(|(listed, _)| listed == name), "{name} is not in {symbols}");
        }
        Self { listed, implemented }
    }

    /// Path of the function that implements a name ending in `_ptds` or `_ptsz`, whose default stream is one of each thread: that without the
    /// ending, in the module `per_thread`.
    pub fn with_other_default_stream(&self, name: &str) -> Option<String> {
        let base = name.strip_suffix("_ptds").or_else(|| name.strip_suffix("_ptsz"))?;
        self.implemented.get(base).map(|module| format!("{module}::per_thread::{base}"))
    }

    /// Writes code to a file in `OUT_DIR`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(file: &str, code: &str) {
        let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
        fs::write(Path::new(&out).join(file), code).expect("OUT_DIR is writable");
    }

    /// Writes exports of the names that no source has to a file in `OUT_DIR`. `item` is the code of an export, from its name and what follows
    /// that in the list.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write_missing(&self, file: &str, item: impl Fn(&str, Option<&str>) -> String) {
        let mut code = String::new();
        for (name, word) in &self.listed {
            if !self.implemented.contains_key(name) {
                code.push_str(&item(name, word.as_deref()));
            }
        }
        Self::write(file, &code);
    }
}

/// Code of an export that returns an expression of this type, whatever it is called with.
pub fn export(name: &str, status: &str, answer: &str) -> String {
    format!("#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> {status} {{ {answer} }}\n")
}

/// Code of an export that is another function, given by its path, under this name.
///
/// # Panics
/// On processors for which it is not written.
pub fn alias(name: &str, path: &str) -> String {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "jmp {}@PLT",
        Ok("aarch64") => "b {}",
        other => panic!("a jump is not known for {other:?}"),
    };
    format!("#[unsafe(naked)]\n#[unsafe(no_mangle)]\nextern \"C\" fn {name}() {{ core::arch::naked_asm!(\"{jump}\", sym {path}) }}\n")
}

/// Code of [redirected](crate::redirected) exports, for a module that has `redirections!` of `EXPORTS`: functions for the names that no source
/// has, from a name and what follows it in the list; an export for each name; `FUNCTIONS` and `TARGETS`.
///
/// # Panics
/// On processors for which it is not written.
pub fn redirected(names: &Names, status: &str, answer: impl Fn(&str, Option<&str>) -> String) -> String {
    use std::fmt::Write;
    let count = names.listed.len();
    let (mut code, mut functions) = (String::new(), String::new());
    for (index, (name, word)) in names.listed.iter().enumerate() {
        let own = match (names.implemented.get(name), names.with_other_default_stream(name)) {
            (Some(module), _) => format!("{module}::{name}"),
            (None, Some(path)) => path,
            (None, None) => {
                let body = answer(name, word.as_deref());
                writeln!(code, "extern \"C\" fn missing_{index}() -> {status} {{ {body} }}").expect(WRITES);
                format!("missing_{index}")
            }
        };
        let jump = jump_to_target(index);
        writeln!(
            code,
            "#[unsafe(naked)]\n#[unsafe(no_mangle)]\nextern \"C\" fn {name}() {{ core::arch::naked_asm!({jump}, targets = sym TARGETS) }}"
        )
        .expect(WRITES);
        writeln!(
            functions,
            "    sahasra_cuda_boundary::redirected::Function {{ name: \"{name}\", own: {own} as *const () }},"
        )
        .expect(WRITES);
    }
    format!(
        "{code}\nstatic FUNCTIONS: [sahasra_cuda_boundary::redirected::Function; {count}] = [\n{functions}];\n\n\
         static TARGETS: [std::sync::atomic::AtomicPtr<()>; {count}] =\n    \
         [const {{ std::sync::atomic::AtomicPtr::new(unresolved as *const () as *mut ()) }}; {count}];\n"
    )
}

const WRITES: &str = "a string takes any text";

/// Instructions of an export: its index in a register that callers and callees leave to the linker, and a jump to its target.
fn jump_to_target(index: usize) -> String {
    let offset = 8 * index;
    match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => format!("\"mov r11d, {index}\", \"jmp qword ptr [rip + {{targets}} + {offset}]\""),
        Ok("aarch64") => format!(
            "\"mov w17, {index}\", \"adrp x16, {{targets}}\", \"add x16, x16, :lo12:{{targets}}\", \"ldr x16, [x16, {offset}]\", \"br x16\""
        ),
        other => panic!("a jump is not known for {other:?}"),
    }
}

/// Generates the exports of a library of the runtime API, from its `symbols.txt`, its own sources and those that all versions share.
///
/// # Panics
/// As [`Names::read`] and [`Names::write_missing`].
pub fn runtime_library(name: &str) {
    name_library(name);
    version_symbols();
    let names = Names::read(
        "symbols.txt",
        &[("../cuda-runtime/src/api", "sahasra_cuda_runtime::api"), ("src/api", "crate::api")],
    );
    let item = |name: &str, _: Option<&str>| match names.with_other_default_stream(name) {
        Some(path) => alias(name, &path),
        None => export(
            name,
            "sahasra_cuda_runtime::Error",
            &format!("sahasra_cuda_runtime::missing(\"{name}\")"),
        ),
    };
    names.write_missing("symbols.rs", item);
}

/// Answer of a function that says its name on stderr and is not supported.
pub fn not_supported(name: &str) -> String {
    format!("sahasra_cuda_boundary::missing::function(\"{name}\")")
}

/// Gives every exported symbol the name of the library as its version, which programs that link to it ask for. Only GNU's linker can do
/// that beside the list of exports that the compiler passes.
pub fn version_symbols() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
        println!("cargo:rustc-cdylib-link-arg=-Wl,--default-symver");
    }
}

/// Names the library as programs look for it. A program may close the library while threads of it run, so it stays.
pub fn name_library(name: &str) {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name},-z,nodelete");
    }
}

/// Lets the loader search the library's own folder first for what the library opens by name.
pub fn search_own_folder() {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // DT_RPATH comes before LD_LIBRARY_PATH, DT_RUNPATH after it.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN,--disable-new-dtags");
    }
}

/// Finds the functions of a folder whose names are those of C: Rust's have no capital letters.
fn read_folder(folder: &Path, path: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("the folder of sources is readable") {
        let file = entry.expect("the folder of sources is readable").path();
        let module = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let text = fs::read_to_string(&file).expect("sources are readable");
        for line in text.lines() {
            let line = line.trim_start();
            // With the macros of this crate, or written out, with any visibility.
            let declaration = line
                .split_once("fn ")
                .filter(|(before, _)| before.is_empty() || before.ends_with("extern \"C\" "));
            if let Some((name, _)) = declaration.and_then(|(_, rest)| rest.split_once('('))
                && name.bytes().any(|letter| letter.is_ascii_uppercase())
                && name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
            {
                found.insert(name.to_owned(), format!("{path}::{module}"));
            }
        }
    }
}
