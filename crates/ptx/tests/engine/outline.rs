//! The outline of every kernel of the corpus agrees with the kernel that the engine loads.

use std::{fs, path::Path};

use sahasra_ptx::{Module, Outline};

fn ptx_files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            ptx_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "ptx") {
            found.push(path);
        }
    }
}

#[test]
fn the_outline_counts_variables_and_refuses_a_text_that_cannot_be_read() {
    let text = |variables: &str| {
        let kernel = ".entry k() { .global .b8 inner[64]; ret; }";
        format!(".version 7.0 .target sm_70 .address_size 64 {variables} {kernel}")
    };
    let counted = Outline::of(&text(".global .b8 x[8589934592]; .const .b32 table[4];")).unwrap();
    assert_eq!((counted.global_bytes, counted.constant_bytes), ((8 << 30) + 64, 16));
    let huge = Outline::of(&text(".global .b8 x[18446744073709551615];")).unwrap();
    assert_eq!(huge.global_bytes, u64::MAX);
    for wrong in [&text(".global .b8 x["), "no PTX"] {
        assert!(Outline::of(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_outline_ends_kernels_where_the_engine_does() {
    let head = ".version 8.0 .target sm_80 .address_size 64";
    for (text, names) in [
        (
            ".entry a() .maxntid 32 .pragma \"nounroll\"; { ret; } .entry b() { ret; }",
            &["a", "b"][..],
        ),
        (".func f .entry a { ret; } .func g", &["a"]),
        (".entry a() { .pragma \"x\"; .param .b32 p; ret; } .global .b32 x;", &["a"]),
        (".entry a .local .b32 y; .entry b { ret; }", &["b"]),
    ] {
        let text = format!("{head} {text}");
        let outline = Outline::of(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let module = Module::load(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let outlined: Vec<_> = outline.entries.iter().map(|entry| entry.name.clone()).collect();
        let loaded: Vec<_> = module.entries().map(|kernel| kernel.name().to_owned()).collect();
        assert_eq!((&outlined[..], &loaded[..]), (&loaded[..], &outlined[..]), "{text}");
        assert_eq!(outlined, names, "{text}");
    }
}

#[test]
fn the_outline_agrees_with_the_engine_on_all_that_it_loads() {
    let mut files = Vec::new();
    ptx_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus"), &mut files);
    let mut compared = 0;
    for path in &files {
        let text = fs::read_to_string(path).expect("PTX");
        // Some texts of the corpus are not complete PTX, and neither reads them.
        let outline = match (Outline::of(&text), Module::load(&text)) {
            (Ok(outline), module) => module.map(|module| (outline, module)),
            (Err(error), Ok(_)) => panic!("{}: {error}", path.display()),
            (Err(_), Err(error)) => Err(error),
        };
        let Ok((outline, module)) = outline else { continue };
        let names: Vec<&str> = outline.entries.iter().map(|entry| entry.name.as_str()).collect();
        let kernels: Vec<_> = module.entries().collect();
        assert_eq!(
            names,
            kernels.iter().map(|kernel| kernel.name()).collect::<Vec<_>>(),
            "{}",
            path.display()
        );
        for (entry, kernel) in outline.entries.iter().zip(&kernels) {
            let place = format!("{}: {}", path.display(), entry.name);
            let declared: Vec<_> = (entry.parameters.iter())
                .map(|parameter| {
                    (
                        parameter.name.as_str(),
                        parameter.bytes as usize,
                        parameter.offset as usize,
                        parameter.is_pointer,
                    )
                })
                .collect();
            let loaded: Vec<_> = (kernel.parameters().iter())
                .map(|parameter| (parameter.name.as_str(), parameter.size, parameter.offset, parameter.is_pointer))
                .collect();
            assert_eq!(declared, loaded, "{place}");
            assert_eq!(entry.required_block, kernel.required_block(), "{place}");
            assert_eq!(entry.shared_bytes, kernel.static_shared_bytes(), "{place}: shared");
            // The engine rounds the local memory of a thread up to its access size, and adds space for the arguments and saved values of
            // calls.
            let more = kernel.local_bytes().checked_sub(entry.local_bytes);
            let calls = text.contains("call");
            assert!(
                more.is_some_and(|more| calls || more < 16),
                "{place}: local: {} and {}",
                entry.local_bytes,
                kernel.local_bytes()
            );
            compared += 1;
        }
    }
    assert!(compared > 40, "only {compared} kernels of {} files", files.len());
}
