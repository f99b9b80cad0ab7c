//! Table of the supported instruction forms, which the decoder accepts and `docs/ptx.md` lists.
//!
//! A line names opcodes and their modifiers in order: `a|b` is a choice, `?` after it makes it optional, and `[level]` stands for any cache
//! hints. A line that begins with `§` opens a family of the PTX ISA.

mod forms;

use hashbrown::HashMap;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::OnceLock;

use crate::error::{LoadError, LoadErrorKind};
use crate::parser::collapse;
use crate::syntax::{Source, Statement};
use crate::types::ScalarType;
use forms::{EARLIER, Earlier, FORMS, REFUSED, REFUSED_FORMS};

/// Version of the ISA and architecture that a text is written for. Some forms exist only in earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    pub version: (u32, u32),
    /// Number of the `.target`, such as 80 for `sm_80` and `compute_80`.
    pub architecture: u32,
}

impl Dialect {
    pub fn of(source: &Source<'_>) -> Self {
        let digits = source.target.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        let digits = digits.rsplit('_').next().unwrap_or_default();
        Self {
            version: source.version,
            architecture: digits.parse().unwrap_or(u32::MAX),
        }
    }

    /// Whether the target is of the first generation, whose f32 arithmetic flushes subnormal numbers (PTX ISA §9.7.3).
    pub fn flushes(self) -> bool {
        self.architecture < 20
    }
}

/// One modifier of a form, or a choice between several.
#[derive(Debug)]
enum Word {
    /// Exactly one of these modifiers.
    OneOf(Vec<&'static str>),
    /// One of these modifiers or none.
    Optional(Vec<&'static str>),
    /// Any number of cache hints.
    Level,
}

type Forms = HashMap<&'static str, Vec<(Option<Earlier>, Vec<Word>)>>;

/// Expands abbreviations of modifier lists that many lines share.
fn expand(word: &'static str) -> &'static str {
    match word {
        "sem?" => "relaxed|acquire|release|acq_rel?",
        "scope?" => "cta|cluster|gpu|sys?",
        "space?" => "global|shared|shared::cta|shared::cluster?",
        other => other,
    }
}

fn words(line: &'static str) -> Vec<Word> {
    line.split(' ')
        .skip(1)
        .map(|word| match expand(word) {
            "[level]" => Word::Level,
            word => match word.strip_suffix('?') {
                Some(word) => Word::Optional(word.split('|').collect()),
                None => Word::OneOf(word.split('|').collect()),
            },
        })
        .collect()
}

fn forms() -> &'static Forms {
    static FOUND: OnceLock<Forms> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found: Forms = HashMap::new();
        let lines = FORMS.lines().filter(|line| !line.is_empty() && !line.starts_with('§'));
        for (earlier, line) in lines
            .map(|line| (None, line))
            .chain(EARLIER.iter().map(|(earlier, line)| (Some(*earlier), *line)))
        {
            let opcodes = line.split(' ').next().unwrap_or_default();
            for opcode in opcodes.split(',') {
                found.entry(opcode).or_default().push((earlier, words(line)));
            }
        }
        found
    })
}

/// Sorts the modifiers of `atom` and `red`. They accept order, scope and space in any order, and the operation anywhere: CUDA's own headers
/// write `atom.global.sys.add.f64`, where the ISA has the space last.
fn in_order<'a>(opcode: &str, modifiers: &[&'a str]) -> Vec<&'a str> {
    let mut ordered = modifiers.to_vec();
    if matches!(opcode, "atom" | "red") {
        ordered.sort_by_key(|word| match *word {
            "relaxed" | "acquire" | "release" | "acq_rel" => 0,
            "cta" | "cluster" | "gpu" | "sys" => 1,
            "global" | "shared" | "shared::cta" | "shared::cluster" => 2,
            _ => 3,
        });
    }
    ordered
}

fn matches(words: &[Word], modifiers: &[&str]) -> bool {
    let Some((word, rest)) = words.split_first() else {
        return modifiers.is_empty();
    };
    let next = modifiers.split_first();
    match word {
        Word::OneOf(of) => next.is_some_and(|(first, behind)| of.contains(first) && matches(rest, behind)),
        Word::Optional(of) => next.is_some_and(|(first, behind)| of.contains(first) && matches(rest, behind)) || matches(rest, modifiers),
        Word::Level => {
            let hints = modifiers
                .iter()
                .take_while(|word| word.starts_with("L1::") || word.starts_with("L2::"))
                .count();
            (0..=hints).any(|taken| matches(rest, &modifiers[taken..]))
        }
    }
}

/// Matches modifiers in any order, except that types keep theirs, as in the vendor's assembler: `cvt.f32.f64.rn`. Appends them to `found`
/// in the order of the table.
fn matches_unordered<'a>(words: &[Word], modifiers: &[&'a str], found: &mut Vec<&'a str>) -> bool {
    let Some((word, rest)) = words.split_first() else {
        return modifiers.is_empty();
    };
    let (of, is_optional) = match word {
        Word::OneOf(of) => (of.as_slice(), false),
        Word::Optional(of) => (of.as_slice(), true),
        Word::Level => {
            let is_hint = |word: &&str| word.starts_with("L1::") || word.starts_with("L2::");
            let (hints, others): (Vec<&str>, Vec<&str>) = modifiers.iter().copied().partition(is_hint);
            let before = found.len();
            found.extend(&hints);
            if matches_unordered(rest, &others, found) {
                return true;
            }
            found.truncate(before);
            return matches_unordered(rest, modifiers, found);
        }
    };
    let is_type = |word: &str| ScalarType::from_name(word).is_some() || NARROW_TYPES.contains(&word);
    let first_type = modifiers.iter().position(|word| is_type(word));
    let at = modifiers.iter().position(|word| of.contains(word));
    if let Some(at) = at.filter(|at| !is_type(modifiers[*at]) || Some(*at) == first_type) {
        let before = found.len();
        found.push(modifiers[at]);
        let others = [&modifiers[..at], &modifiers[at + 1..]].concat();
        if matches_unordered(rest, &others, found) {
            return true;
        }
        found.truncate(before);
    }
    is_optional && matches_unordered(rest, modifiers, found)
}

/// Returns the scope or space of a block for that of a cluster.
fn of_one_block(word: &str) -> &str {
    match word {
        "cluster" => "cta",
        "shared::cluster" => "shared::cta",
        other => other,
    }
}

/// Types of parts of registers, which keep their order as the others do.
const NARROW_TYPES: [&str; 10] = ["tf32", "e4m3", "e5m2", "e4m3x2", "e5m2x2", "u4", "s4", "u2", "s2", "b1"];

/// More modifiers than this are only matched in order.
const UNORDERED_LIMIT: usize = 12;

/// Returns the modifiers in the order of the table, without clusters, since a block is a cluster of its own.
///
/// # Errors
/// The reason why the table does not admit the form in this dialect.
pub fn canonical<'a, 'm>(opcode: &str, modifiers: &'m [&'a str], dialect: Dialect) -> Result<Cow<'m, [&'a str]>, String> {
    let admitted = forms().get(opcode).map(Vec::as_slice).unwrap_or_default();
    let mut ordered = in_order(opcode, modifiers);
    let has_cluster = modifiers.iter().any(|word| word.contains("cluster"));
    let as_is = |(earlier, words): &(Option<Earlier>, Vec<Word>)| earlier.is_none() && matches(words, &ordered);
    if !has_cluster && admitted.iter().any(as_is) {
        return Ok(Cow::Borrowed(modifiers));
    }
    // Before version 6.3, `wmma` had no `.aligned`.
    if opcode == "wmma" && dialect.version < (6, 3) && !ordered.contains(&"aligned") {
        let behind = ordered.iter().position(|word| *word == "sync").map_or(0, |at| at + 1);
        ordered.insert(behind, "aligned");
    }
    let earlier_of = |(earlier, _): &(Option<Earlier>, Vec<Word>)| *earlier;
    let mut found = admitted.iter().find(|(_, words)| matches(words, &ordered)).map(earlier_of);
    // The shapes and layouts of matrices are named by their place.
    let is_ordered = matches!(opcode, "mma" | "wmma");
    if found.is_none() && ordered.len() <= UNORDERED_LIMIT && !is_ordered {
        let mut sorted = Vec::new();
        found = admitted
            .iter()
            .find(|(_, words)| matches_unordered(words, &ordered, &mut sorted))
            .map(earlier_of);
        ordered = if found.is_some() { sorted } else { ordered };
    }
    match found {
        Some(Some(earlier)) if !earlier.holds(dialect) => Err(format!(
            "instruction form {}: it needs {}",
            form(opcode, modifiers),
            earlier.needs()
        )),
        // The barrier of a cluster is not one of the block's.
        Some(_) if opcode == "barrier" => Ok(Cow::Owned(ordered)),
        Some(_) => Ok(Cow::Owned(ordered.into_iter().map(of_one_block).collect())),
        None => Err(refused(opcode, modifiers)),
    }
}

fn form(opcode: &str, modifiers: &[&str]) -> String {
    let mut form = opcode.to_owned();
    for modifier in modifiers {
        form.push('.');
        form.push_str(modifier);
    }
    form
}

/// Returns the reason why no table admits a form.
fn refused(opcode: &str, modifiers: &[&str]) -> String {
    let form = form(opcode, modifiers);
    let cluster = modifiers.iter().any(|word| word.contains("cluster"));
    let bulk = modifiers.contains(&"bulk") || modifiers.contains(&"tensor");
    let word = REFUSED_FORMS
        .iter()
        .find(|(refused, word, _)| *refused == opcode && modifiers.contains(word));
    if let Some((_, _, reason)) = word {
        return format!("instruction form {form}: {reason}");
    }
    match REFUSED.iter().find(|(refused, _)| *refused == opcode) {
        Some((_, reason)) => format!("instruction form {form}: {reason}"),
        None if bulk => format!("instruction form {form}: copies of tensors (TMA)"),
        None if cluster => format!("instruction form {form}: thread block clusters"),
        None => format!("instruction form {form}"),
    }
}

/// Returns an error for the first instruction of a module whose form is not in the table.
pub fn unsupported(source: &Source<'_>) -> Option<LoadError> {
    fn first(statements: &[Statement<'_>], dialect: Dialect) -> Option<LoadError> {
        statements.iter().find_map(|statement| match statement {
            Statement::Instruction(instruction) => canonical(instruction.opcode, &instruction.modifiers, dialect).err().map(|reason| {
                let kind = LoadErrorKind::Unsupported(reason);
                LoadError::new(instruction.position, collapse(instruction.text), kind)
            }),
            Statement::Scope(statements) => first(statements, dialect),
            _ => None,
        })
    }
    let dialect = Dialect::of(source);
    source
        .functions
        .iter()
        .filter_map(|function| function.body.as_deref())
        .find_map(|body| first(body, dialect))
}

/// Returns the opcodes and modifiers of a line of the table as Markdown.
fn printed(line: &'static str) -> (String, String) {
    let (opcodes, rest) = line.split_once(' ').unwrap_or((line, ""));
    let mut form = String::new();
    for word in rest.split(' ').filter(|word| !word.is_empty()) {
        let word = expand(word);
        let part = match (word, word.strip_suffix('?')) {
            ("[level]", _) => "[.level…]".to_owned(),
            (_, Some(optional)) => format!("[.{}]", optional.replace('|', " .")),
            (word, None) if word.contains('|') => format!("{{.{}}}", word.replace('|', " .")),
            (word, None) => format!(".{word}"),
        };
        form.push_str(&part);
    }
    let opcodes: Vec<String> = opcodes.split(',').map(|opcode| format!("`{opcode}`")).collect();
    let form = if form.is_empty() { String::new() } else { format!("`{form}`") };
    (opcodes.join(", "), form)
}

/// Returns the supported instructions as Markdown, with a table for each family, followed by the rejected instructions.
pub fn table() -> String {
    let mut text = String::new();
    for line in FORMS.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('§') {
            let _ = write!(text, "\n### {line}\n\n| Instruction | Forms |\n|---|---|\n");
            continue;
        }
        let (opcodes, form) = printed(line);
        let _ = writeln!(text, "| {opcodes} | {form} |");
    }
    text.push_str("\n### Earlier forms\n\n| Instruction | Forms | Needs |\n|---|---|---|\n");
    for (earlier, line) in EARLIER {
        let (opcodes, form) = printed(line);
        let _ = writeln!(text, "| {opcodes} | {form} | {} |", earlier.needs());
    }
    text.push_str("\n### Refused\n\n| Instruction | Because it needs |\n|---|---|\n");
    for (opcode, reason) in REFUSED {
        let _ = writeln!(text, "| `{opcode}` | {reason} |");
    }
    for (opcode, word, reason) in REFUSED_FORMS {
        let _ = writeln!(text, "| `{opcode}….{word}` | {reason} |");
    }
    text.push_str("| anything else with `cluster` | thread block clusters |\n");
    text.push_str("| `cp….tensor` | copies of tensors (TMA) |\n");
    text
}

#[cfg(test)]
mod tests;
