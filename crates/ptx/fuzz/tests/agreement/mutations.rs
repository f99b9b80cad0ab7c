//! Damaged PTX: loading returns a module or an error with a position, and running returns statistics or a fault. The engine must never
//! panic, and never access memory outside allocations.

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use sahasra_ptx_fuzz::damage;

fn corpus() -> Vec<String> {
    damage::corpus(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")).expect("the corpus")
}

#[derive(Clone, Debug)]
enum Mutation {
    /// Removes a number of bytes at a position.
    Remove(usize, usize),
    Insert(usize, String),
    /// Copies a piece to another position.
    Copy(usize, usize, usize),
    /// Swaps two lines.
    Swap(usize, usize),
    /// Replaces a word with another one.
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

/// Loads the text and, if that succeeds, runs every kernel.
fn survive(text: &str) {
    if let Err(reason) = damage::survive(text) {
        panic!("{reason}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1500,
        max_shrink_iters: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_text_loads_or_is_rejected_and_runs_or_faults(file in any::<prop::sample::Index>(), mutations in mutations()) {
        thread_local! {
            // The files are short enough for many cases in little time.
            static CORPUS: Vec<String> = corpus().into_iter().filter(|text| text.len() < 7000).collect();
        }
        CORPUS.with(|texts| survive(&apply(&texts[file.index(texts.len())], &mutations)));
    }

    #[test]
    fn arbitrary_text_is_rejected_with_a_position(text in "[ -~\n\t]{0,200}") {
        survive(&text);
        survive(&format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ {text}"));
    }
}

#[test]
fn every_corpus_file_loads_or_is_rejected_with_its_line() {
    for text in corpus() {
        survive(&text);
    }
}

#[test]
fn deep_nesting_is_rejected_without_a_stack_overflow() {
    let open = "{".repeat(100_000);
    survive(&format!(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ {open}"));
    survive(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ mov.u32 %r1, {open}"
    ));
    survive(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.global .u32 x[2] = {open}"
    ));
    let pairs = "a|{".repeat(50_000);
    survive(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{ mov.b32 {pairs}"
    ));
    let casts = "(.s64)".repeat(500_000);
    survive(&format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.global .u32 x = {casts}1;"
    ));
}

#[test]
fn enormous_declarations_cost_nothing() {
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .reg .b32 %r<4000000000>; mov.u32 %r3999999999, 1; ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .local .b8 x[4000000000000]; ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k() { .shared .b64 x[4000000000000][4000000000000]; ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.global .b8 x[70000000000000];\n.entry k() { ret; }");
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .b8 x[100000]) { ret; }");
    survive(
        ".version 8.0\n.target sm_80\n.address_size 64\n.func f(.param .align 1 .b8 x[16777216]) { ret; }\n\
         .entry k() { .param .align 1 .b8 a[16777216]; call f, (a); ret; }",
    );
    survive(".version 8.0\n.target sm_80\n.address_size 64\n.global .b8 x[0][9223372036854775807] = {{1},{1},{1,1}};\n.entry k() { ret; }");
    survive(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 a, .param .u64 b) {\n\
         .reg .b64 %rd<2>; .reg .b32 %r<18446744073709551615>, %s<18446744073709551615>;\n\
         .local .b8 x[18446744073709551615]; .local .b8 y[1]; ld.param.u64 %rd1, [b+9223372036854775807]; ret; }",
    );
}
