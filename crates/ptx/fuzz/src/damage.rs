//! Damaged PTX and random bytes for the engine's parser and loader. The result must be a module or an error with a position, within a time
//! limit, and never a panic.

use std::num::NonZero;
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use sahasra_ptx::{Cancel, FaultKind, Launch, Memory, Module};

/// Maximum time to load any text. The largest text of the corpus takes a thousandth of it.
const LOAD_LIMIT: Duration = Duration::from_secs(20);
/// Step limit of a damaged kernel.
const STEPS: u64 = 3000;

/// Result of loading and running a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survived {
    /// The text was rejected, with a position in the text.
    Refused,
    /// The text was loaded, and every kernel ran or faulted.
    Ran,
}

/// Returns the texts of the `.ptx` files below a folder, in order.
pub fn corpus(root: &Path) -> std::io::Result<Vec<String>> {
    let mut folders = vec![root.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                found.push((path.clone(), std::fs::read_to_string(path)?));
            }
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, text)| text).collect())
}

/// Returns the text of this seed: random bytes, tokens in random order, or a file of the corpus with pieces removed, copied, swapped, or
/// taken from another file.
pub fn text(seed: u64, corpus: &[String]) -> String {
    let mut random = Rng::with_seed(seed ^ 0xdead_10cc);
    match random.u8(..10) {
        0 => {
            let bytes: Vec<u8> = (0..random.usize(..400)).map(|_| random.u8(..)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        1 => {
            let words = words(&corpus[random.usize(..corpus.len())]);
            let body: Vec<&str> = (0..random.usize(1..120)).map(|_| words[random.usize(..words.len())]).collect();
            format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 a) {{\n{}",
                body.join(" ")
            )
        }
        _ => {
            let mut text = corpus[random.usize(..corpus.len())].clone().into_bytes();
            for _ in 0..random.u8(1..5) {
                mutate(&mut text, corpus, &mut random);
            }
            String::from_utf8_lossy(&text).into_owned()
        }
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_inclusive([' ', '\t', '\n', ',', ';', '.', '[', ']', '{', '}']).collect()
}

fn mutate(text: &mut Vec<u8>, corpus: &[String], random: &mut Rng) {
    if text.is_empty() {
        return;
    }
    let at = random.usize(..text.len());
    let end = (at + random.usize(1..60)).min(text.len());
    match random.u8(..9) {
        0 => drop(text.drain(at..end)),
        1 => text[at] = random.u8(..),
        2 => {
            let piece = text[at..end].to_vec();
            let to = random.usize(..=text.len());
            text.splice(to..to, piece);
        }
        3 => {
            let other = &corpus[random.usize(..corpus.len())];
            let lines: Vec<&str> = other.lines().collect();
            let line = format!("\n{}\n", lines[random.usize(..lines.len())]);
            let to = line_start(text, at);
            text.splice(to..to, line.into_bytes());
        }
        4 => {
            // Replaces a number, if there is one, with an extreme one.
            if let Some(digit) = text[at..].iter().position(u8::is_ascii_digit) {
                let numbers = [
                    "0",
                    "1",
                    "255",
                    "4294967295",
                    "4294967296",
                    "18446744073709551615",
                    "99999999999999999999",
                    "0x",
                    "-1",
                    "1e400",
                ];
                let number = numbers[random.usize(..numbers.len())];
                text.splice(at + digit..=at + digit, number.bytes());
            }
        }
        5 => {
            // Swaps two lines.
            let (first, second) = (line_start(text, at), line_start(text, random.usize(..text.len())));
            let (low, high) = (first.min(second), first.max(second));
            let line = |start: usize| {
                text[start..]
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(text.len(), |length| start + length + 1)
            };
            if line(low) <= high {
                let (low_end, high_end) = (line(low), line(high));
                let (low_line, high_line) = (text[low..low_end].to_vec(), text[high..high_end].to_vec());
                text.splice(high..high_end, low_line);
                text.splice(low..low_end, high_line);
            }
        }
        6 => text.truncate(at),
        7 => {
            let found = String::from_utf8_lossy(text).into_owned();
            let all = words(&found);
            let (place, with) = (random.usize(..all.len()), random.usize(..all.len()));
            let mut replaced = all.clone();
            replaced[place] = all[with];
            *text = replaced.concat().into_bytes();
        }
        _ => {
            let marks = [
                "{", "}", "(", ")", "[", "]", ";", ",", "@", "!", "<", ">", "|", ":", "\"", "/*", "//", "\0", "%", "$", "é",
            ];
            let mark = marks[random.usize(..marks.len())];
            text.splice(at..at, mark.bytes());
        }
    }
}

fn line_start(text: &[u8], at: usize) -> usize {
    text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1)
}

/// Loads the text and runs its kernels. An error describes what the engine must not do.
pub fn survive(text: &str) -> Result<Survived, String> {
    let start = Instant::now();
    let loaded = Module::load(text);
    let taken = start.elapsed();
    if taken > LOAD_LIMIT {
        return Err(format!("loading {} bytes took {taken:?}", text.len()));
    }
    let module = match loaded {
        Ok(module) => module,
        Err(error) => {
            let lines = text.split('\n').count() as u32;
            if error.line < 1 || error.line > lines {
                return Err(format!("an error in line {} of {lines}: {error}", error.line));
            }
            if error.reason().is_empty() {
                return Err("an error without a reason".to_owned());
            }
            return Ok(Survived::Refused);
        }
    };
    let memory = Memory::new(1 << 20);
    let (Ok(instance), Ok(buffer)) = (module.instantiate(&memory), memory.allocate(4096)) else {
        return Ok(Survived::Refused);
    };
    for kernel in module.entries() {
        let Some(kernel) = instance.entry(kernel.name()) else { continue };
        let mut arguments = vec![0; kernel.parameter_bytes()];
        for parameter in kernel.parameters() {
            let place = &mut arguments[parameter.offset..parameter.offset + parameter.size];
            match parameter.size {
                8 => place.copy_from_slice(&buffer.0.to_le_bytes()),
                4 => place.copy_from_slice(&20u32.to_le_bytes()),
                _ => {}
            }
        }
        let launch = Launch {
            step_limit: Some(STEPS),
            threads: NonZero::<usize>::MIN,
            dynamic_shared_bytes: 512,
            ..Launch::new([2, 1, 1], kernel.required_block().unwrap_or([kernel.max_threads().min(70), 1, 1]))
        };
        match kernel.launch(&launch, &arguments, &memory, &Cancel::new()) {
            Ok(statistics) if statistics.steps > STEPS => return Err(format!("{} steps of {STEPS}", statistics.steps)),
            Err(fault) if fault.kind == FaultKind::Cancelled => return Err(format!("nobody cancelled: {fault}")),
            _ => {}
        }
    }
    Ok(Survived::Ran)
}
