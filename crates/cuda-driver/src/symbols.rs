//! The exported functions, and their table for `cuGetProcAddress`.

use std::sync::OnceLock;

use sahasra_cuda_boundary::redirected::Exports;

use crate::status::Status;

/// An exported function.
pub(crate) struct Symbol {
    pub(crate) name: &'static str,
    /// CUDA version from which callers get this form.
    pub(crate) version: i32,
    pub(crate) address: *const (),
}

// SAFETY: the address is that of a function.
unsafe impl Sync for Symbol {}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// Where calls go: to the functions of this library, or to those of the driver of this machine.
pub(crate) static EXPORTS: Exports = Exports {
    library: "libcuda.so.1",
    functions: &FUNCTIONS,
    targets: &TARGETS,
    absent: absent as *const (),
    names_a_device: sahasra_cuda_environment::names_a_device,
    choice: OnceLock::new(),
};

sahasra_cuda_boundary::redirections!(EXPORTS, Status, Status::NOT_FOUND);

/// Answer of [`find`].
pub(crate) enum Lookup {
    Found(&'static Symbol),
    /// The name exists in later versions only.
    TooOld,
    Unknown,
}

/// Names under which callers of a CUDA version and later ones get another function.
const RENAMED: [(&str, i32, &str); 1] = [("cuGraphInstantiate", 12_000, "cuGraphInstantiateWithFlags")];

/// Finds the newest form of a function that a caller of this CUDA version knows. Names may also be those of a form, as `cuMemAlloc_v2`.
pub(crate) fn find(name: &str, version: i32) -> Lookup {
    let renamed = RENAMED.iter().find(|(old, from, _)| *old == name && *from <= version);
    let name = renamed.map_or(name, |(.., new)| new);
    let forms = SYMBOLS.iter().filter(|symbol| base(symbol.name) == name);
    let known = forms.clone().filter(|symbol| symbol.version <= version);
    match known.max_by_key(|symbol| (symbol.version, symbol.name.len(), symbol.name)) {
        Some(symbol) => Lookup::Found(symbol),
        None if forms.count() > 0 => Lookup::TooOld,
        None => match SYMBOLS.iter().find(|symbol| symbol.name == name) {
            Some(symbol) => Lookup::Found(symbol),
            None => Lookup::Unknown,
        },
    }
}

/// The form of a function whose default stream is one of each thread, if there is one.
pub(crate) fn with_stream_of_thread(symbol: &'static Symbol) -> &'static Symbol {
    let is_form = |name: &str| matches!(name.strip_prefix(symbol.name), Some("_ptds" | "_ptsz"));
    SYMBOLS.iter().find(|other| is_form(other.name)).unwrap_or(symbol)
}

/// The name without the number of its form.
fn base(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, form)) if form.bytes().all(|byte| byte.is_ascii_digit()) && !form.is_empty() => base,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_get_the_newest_form_that_they_know() {
        let found = |name, version| match find(name, version) {
            Lookup::Found(symbol) => symbol.name,
            Lookup::TooOld => "too old",
            Lookup::Unknown => "unknown",
        };
        assert_eq!(found("cuMemAlloc", 12_080), "cuMemAlloc_v2");
        assert_eq!(found("cuMemAlloc", 2_000), "cuMemAlloc");
        assert_eq!(found("cuInit", 2_000), "cuInit");
        assert_eq!(found("cuCtxCreate", 12_000), "cuCtxCreate_v3");
        assert_eq!(found("cuCtxCreate", 13_000), "cuCtxCreate_v4");
        assert_eq!(found("cuCtxGetDevice", 12_080), "cuCtxGetDevice");
        assert_eq!(found("cuGetProcAddress", 12_000), "cuGetProcAddress_v2");
        assert_eq!(found("cuMemAlloc_v2", 12_000), "cuMemAlloc_v2");
        assert_eq!(found("cuGraphInstantiate", 11_000), "cuGraphInstantiate_v2");
        assert_eq!(found("cuGraphInstantiate", 12_000), "cuGraphInstantiateWithFlags");
        assert_eq!(found("cuGraphAddNode", 12_020), "cuGraphAddNode");
        assert_eq!(found("cuNothing", 12_000), "unknown");
        for (name, expected) in [("cuMemAlloc", "cuMemAlloc_v2"), ("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2_ptsz")] {
            let Lookup::Found(symbol) = find(name, 12_000) else {
                panic!("{name}")
            };
            assert_eq!(with_stream_of_thread(symbol).name, expected);
        }
    }

    #[test]
    fn most_of_what_programs_call_is_implemented() {
        const { assert!(IMPLEMENTED > 200 && IMPLEMENTED <= SYMBOLS.len()) };
    }
}
