//! Damaged PTX: loading answers with a module or an error that has a place, running with statistics or a fault. Never
//! a panic, never an access outside what was allocated.

use std::num::NonZero;
use std::path::Path;

use proptest::prelude::*;
use sahasra_ptx::{Cancel, FaultKind, Launch, Memory, Module};

/// Files short enough that many cases run in little time.
fn corpus() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut folders = vec![root];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                texts.push((path.clone(), std::fs::read_to_string(&path).expect("text")));
            }
        }
    }
    texts.sort();
    texts.into_iter().map(|(_, text)| text).collect()
}

#[derive(Clone, Debug)]
enum Mutation {
    /// Removes so many bytes at a place.
    Remove(usize, usize),
    /// Inserts text.
    Insert(usize, String),
    /// Copies a piece elsewhere.
    Copy(usize, usize, usize),
    /// Swaps two lines.
    Swap(usize, usize),
    /// Puts a word where another stood.
    Word(usize, usize),
}

const WORDS: [&str; 36] = [
    "%r1",
    "%rd1",
    "%p1",
    "%f1",
    "0",
    "-1",
    "4294967296",
    "0f7FC00000",
    ".u32",
    ".f64",
    ".b16",
    ".s8",
    ".pred",
    ".v4",
    ".shared",
    ".local",
    ".generic",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    "@",
    "!",
    "bra",
    "ret",
    "bar.sync",
    "atom",
    "%tid.x",
    "_",
    "99999999",
    "<",
    ">",
    "|",
    "(",
];

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let at = any::<prop::sample::Index>().prop_map(|index| index.index(1 << 20));
    let one = prop_oneof![
        (at.clone(), 1usize..40).prop_map(|(at, length)| Mutation::Remove(at, length)),
        (at.clone(), "[ -~\n]{1,12}").prop_map(|(at, text)| Mutation::Insert(at, text)),
        (at.clone(), at.clone(), 1usize..60).prop_map(|(from, to, length)| Mutation::Copy(from, to, length)),
        (at.clone(), at.clone()).prop_map(|(first, second)| Mutation::Swap(first, second)),
        (at.clone(), 0..WORDS.len()).prop_map(|(at, word)| Mutation::Word(at, word)),
        (at, 0..WORDS.len()).prop_map(|(at, word)| Mutation::Word(at, word)),
    ];
    prop::collection::vec(one, 1..4)
}

fn apply(text: &str, mutations: &[Mutation]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for mutation in mutations {
        let length = bytes.len().max(1);
        match mutation {
            Mutation::Remove(at, count) => {
                let at = at % length;
                let end = (at + count).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            Mutation::Insert(at, text) => {
                let at = (at % length).min(bytes.len());
                bytes.splice(at..at, text.bytes());
            }
            Mutation::Copy(from, to, count) => {
                let from = (from % length).min(bytes.len());
                let piece = bytes[from..(from + count).min(bytes.len())].to_vec();
                let to = (to % length).min(bytes.len());
                bytes.splice(to..to, piece);
            }
            Mutation::Swap(first, second) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut lines: Vec<&str> = text.split('\n').collect();
                let count = lines.len();
                lines.swap(first % count, second % count);
                bytes = lines.join("\n").into_bytes();
            }
            Mutation::Word(at, word) => {
                let ends = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b',' | b';' | b'.' | b'[' | b']');
                let start = (at % length).min(bytes.len());
                let start = bytes[..start].iter().rposition(ends).map_or(0, |place| place + 1);
                let end = bytes[start..].iter().position(ends).map_or(bytes.len(), |place| start + place);
                bytes.splice(start..end, WORDS[*word].bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Loads and, where that succeeds, runs every kernel on a small memory.
fn survive(text: &str) {
    let module = match Module::load(text) {
        Ok(module) => module,
        Err(error) => {
            let lines = text.split('\n').count() as u32;
            assert!(error.line >= 1 && error.line <= lines, "{error}");
            assert!(!error.reason().is_empty());
            return;
        }
    };
    let memory = Memory::new(1 << 20);
    let Ok(instance) = module.instantiate(&memory) else { return };
    let Ok(buffer) = memory.allocate(4096) else { return };
    for kernel in module.entries() {
        let Some(kernel) = instance.entry(kernel.name()) else { continue };
        // Pointers where eight bytes are wanted, small numbers elsewhere.
        let mut arguments = vec![0; kernel.parameter_bytes()];
        for parameter in kernel.parameters() {
            let place = &mut arguments[parameter.offset..parameter.offset + parameter.size];
            match parameter.size {
                8 => place.copy_from_slice(&buffer.0.to_le_bytes()),
                4 => place.copy_from_slice(&20u32.to_le_bytes()),
                _ => {}
            }
        }
        let block = kernel.required_block().unwrap_or([kernel.max_threads().min(70), 1, 1]);
        let launch = Launch {
            step_limit: Some(3000),
            threads: NonZero::<usize>::MIN,
            dynamic_shared_bytes: 512,
            ..Launch::new([2, 1, 1], block)
        };
        match kernel.launch(&launch, &arguments, &memory, &Cancel::new()) {
            Ok(statistics) => assert!(statistics.steps <= 3000),
            Err(fault) => assert!(fault.kind != FaultKind::Cancelled, "{fault}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn damaged_text_loads_or_is_refused_and_runs_or_faults(file in any::<prop::sample::Index>(), mutations in mutations()) {
        thread_local! {
            static CORPUS: Vec<String> = corpus().into_iter().filter(|text| text.len() < 7000).collect();
        }
        CORPUS.with(|texts| survive(&apply(&texts[file.index(texts.len())], &mutations)));
    }

    #[test]
    fn arbitrary_text_is_refused_in_place(text in "[ -~\n\t]{0,200}") {
        survive(&text);
        survive(&format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ {text}"));
    }
}

#[test]
fn every_corpus_file_loads_or_is_refused_with_its_line() {
    for text in corpus() {
        survive(&text);
    }
}

#[test]
fn deep_nesting_is_refused_not_overflowed() {
    let open = "{".repeat(100_000);
    survive(&format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ {open}"));
    survive(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ mov.u32 %r1, {open}"
    ));
    survive(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.global .u32 x[2] = {open}"
    ));
}

#[test]
fn enormous_declarations_cost_nothing() {
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .reg .b32 %r<4000000000>; mov.u32 %r3999999999, 1; ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .local .b8 x[4000000000000]; ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .shared .b64 x[4000000000000][4000000000000]; ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.global .b8 x[70000000000000];\n.entry k() { ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .b8 x[100000]) { ret; }");
}
