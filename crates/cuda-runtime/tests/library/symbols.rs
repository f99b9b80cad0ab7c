//! Names and structures of the libraries.

use std::process::Command;

use crate::libraries::{CPU, Folder, VERSIONS, built, text};

/// Names that each library must export.
const SYMBOLS: [&str; 2] = [
    include_str!("../../../cuda-runtime-12/symbols.txt"),
    include_str!("../../../cuda-runtime-13/symbols.txt"),
];
/// Variable that marks the process in which a test runs.
const APART: &str = "SAHASRA_TEST_APART";

fn open(version: u32) -> libloading::Library {
    // SAFETY: the library has no initialisers.
    unsafe { libloading::Library::new(built(&format!("cuda_runtime_{version}"))).expect("Cargo built the library") }
}

#[test]
fn every_name_is_exported() {
    for (version, symbols) in VERSIONS.into_iter().zip(SYMBOLS) {
        let library = open(version);
        let names: Vec<&str> = symbols.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(names.len() > 400);
        for name in names {
            // SAFETY: the symbol is not called.
            let found = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) };
            assert!(found.is_ok(), "{version}: {name}");
        }
    }
}

#[test]
fn properties_have_the_layout_of_their_version() {
    let test = "symbols::properties_have_the_layout_of_their_version";
    if std::env::var_os(APART).is_none() {
        let folder = Folder::new();
        let output = Command::new(std::env::current_exe().expect("the test is a file"))
            .args(["--exact", test])
            .env(APART, "1")
            .env("LD_LIBRARY_PATH", folder.path())
            .envs(CPU.iter().copied())
            .output()
            .expect("the test is a program");
        let texts = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && texts.contains("1 passed"), "{texts}");
        return;
    }
    type Function = unsafe extern "C" fn(*mut u8, i32) -> u32;
    // Version, function, bytes that it may write, and where it has capability, multiprocessors, cache and largest shared memory.
    let layouts: [(u32, &str, usize, [usize; 4]); 3] = [
        (12, "cudaGetDeviceProperties_v2", 1032, [360, 388, 616, 696]),
        (12, "cudaGetDeviceProperties", 728, [360, 388, 616, 696]),
        (13, "cudaGetDeviceProperties", 1008, [360, 384, 596, 672]),
    ];
    for (version, name, bytes, [capability, multiprocessors, cache, shared]) in layouts {
        let library = open(version);
        let mut place = [0xa5u8; 2048];
        // SAFETY: the place has more bytes than any version writes.
        let result = unsafe { library.get::<Function>(name.as_bytes()).expect("it is exported")(place.as_mut_ptr(), 0) };
        assert_eq!(result, 0, "{version} {name}");
        let word = |offset: usize| u32::from_ne_bytes(place[offset..offset + 4].try_into().expect("four bytes"));
        assert!(place.starts_with(b"Sahasra CPU\0"));
        assert_eq!(&place[256..272], b"sahasra-cpu-0000");
        assert_eq!(u64::from_ne_bytes(place[288..296].try_into().expect("eight bytes")), 64 << 20);
        assert_eq!((word(capability), word(capability + 4)), (8, 0), "{version} {name}");
        assert_eq!(word(multiprocessors), 2, "{version} {name}");
        assert_eq!(word(cache), 4 << 20, "{version} {name}");
        assert_eq!(word(shared), 163 << 10, "{version} {name}");
        assert!(place[bytes..].iter().all(|byte| *byte == 0xa5), "{version} {name}");
    }
}
