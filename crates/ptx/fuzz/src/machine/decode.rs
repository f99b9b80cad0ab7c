//! Decoding of instructions from words to operations, once per program.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::memory::{LOCAL, SHARED};
use super::program::{Access, Argument, Instruction, Meeting, Operation, Program, Reduction, Shuffle, Space, Update, Vote};
use crate::kind::Kind;
use crate::model::Model;

/// Instruction as it is written.
pub(super) struct Written<'a> {
    pub(super) guard: Option<(usize, bool)>,
    /// Opcode and modifiers.
    pub(super) form: String,
    pub(super) arguments: Vec<Argument>,
    pub(super) line: usize,
    /// Labels in the list of branch targets that the instruction names, if any.
    pub(super) targets: Vec<&'a str>,
}

/// Returns the model of a form, which is created once per thread.
fn model(form: &str) -> Option<Arc<Model>> {
    thread_local! {
        static MODELS: RefCell<HashMap<String, Option<Arc<Model>>>> = RefCell::default();
    }
    MODELS.with_borrow_mut(|models| match models.get(form) {
        Some(found) => found.clone(),
        None => {
            let found = Model::of(form).map(Arc::new);
            models.insert(form.to_owned(), found.clone());
            found
        }
    })
}

/// Decodes an instruction of a function with these labels.
pub(super) fn decode(written: Written<'_>, labels: &HashMap<&str, usize>, program: &Program) -> Instruction {
    let Written {
        guard,
        form,
        mut arguments,
        line,
        targets,
    } = written;
    let operation = match model(&form) {
        Some(model) => Operation::Compute(model),
        None => operation(&form, &arguments, &targets, labels).unwrap_or(Operation::Unknown(form)),
    };
    if matches!(operation, Operation::Move(_)) {
        // The operand may be the address of a function.
        for argument in &mut arguments {
            if let Argument::Name(name) = argument
                && let Some(function) = program.function(name)
            {
                *argument = Argument::Integer(Program::address(function));
            }
        }
    }
    Instruction {
        guard,
        operation,
        arguments,
        line,
    }
}

fn operation(form: &str, arguments: &[Argument], targets: &[&str], labels: &HashMap<&str, usize>) -> Option<Operation> {
    let mut words = form.split('.');
    let opcode = words.next()?;
    let words: Vec<&str> = words.collect();
    let has = |word: &str| words.contains(&word);
    let kind = words.last().and_then(|word| Kind::from_name(word));
    let named = words.iter().find_map(|word| Space::from_word(word));
    let access = || {
        Some(Access {
            space: named.unwrap_or(Space::Generic),
            kind: kind?,
        })
    };
    Some(match opcode {
        "mov" => Operation::Move(kind?),
        "ld" | "ldu" => Operation::Load(access()?),
        "st" => Operation::Store(access()?),
        "atom" | "red" => Operation::Atomic(access()?, update(&words, kind?)?, opcode == "atom"),
        "cvta" => {
            let base = match named {
                Some(Space::Shared) => SHARED,
                Some(Space::Local) => LOCAL,
                _ => 0,
            };
            Operation::Convert(if has("to") { base.wrapping_neg() } else { base })
        }
        "isspacep" => Operation::IsSpace(named?),
        "bra" => match arguments {
            [Argument::Name(label)] => Operation::Jump(*labels.get(label.as_str())?),
            _ => return None,
        },
        "brx" => Operation::JumpTable(targets.iter().map(|label| labels.get(label).copied()).collect::<Option<_>>()?),
        "call" => Operation::Call,
        "ret" => Operation::Return,
        "exit" => Operation::Exit,
        "trap" | "brkpt" => Operation::Trap,
        "membar" | "fence" | "nanosleep" | "prefetch" | "prefetchu" | "pmevent" | "discard" => Operation::Nothing,
        _ => Operation::Meet(meeting(opcode, &words, kind)?),
    })
}

fn update(words: &[&str], kind: Kind) -> Option<Update> {
    words.iter().find_map(|word| {
        Some(match *word {
            "add" if kind.format().is_some() => {
                // `add.noftz.f16` adds like `add.rn.f16`; the name of the type is the last word.
                Update::AddFloat(model(&format!("add.rn.{}", words.last()?))?)
            }
            "add" => Update::Add,
            "and" => Update::And,
            "or" => Update::Or,
            "xor" => Update::Xor,
            "exch" => Update::Exchange,
            "cas" => Update::CompareExchange,
            "min" => Update::Minimum,
            "max" => Update::Maximum,
            "inc" => Update::Increment,
            "dec" => Update::Decrement,
            _ => return None,
        })
    })
}

fn meeting(opcode: &str, words: &[&str], kind: Option<Kind>) -> Option<Meeting> {
    let has = |word: &str| words.contains(&word);
    // Returns the value of the first of these words that occurs in the form.
    fn first<T: Copy>(words: &[&str], of: &[(&str, T)]) -> Option<T> {
        of.iter().find(|(name, _)| words.contains(name)).map(|(_, value)| *value)
    }
    Some(match opcode {
        "bar" if has("warp") => Meeting::WarpBarrier,
        "bar" | "barrier" if has("red") => {
            Meeting::Barrier(Some(first(words, &[("popc", Vote::Count), ("and", Vote::All), ("or", Vote::Any)])?))
        }
        "bar" | "barrier" if has("arrive") => Meeting::Arrival,
        "bar" | "barrier" => Meeting::Barrier(None),
        "shfl" => Meeting::Shuffle(first(
            words,
            &[
                ("up", Shuffle::Up),
                ("down", Shuffle::Down),
                ("bfly", Shuffle::Butterfly),
                ("idx", Shuffle::Index),
            ],
        )?),
        "vote" => Meeting::Vote(first(
            words,
            &[
                ("ballot", Vote::Ballot),
                ("all", Vote::All),
                ("any", Vote::Any),
                ("uni", Vote::Uniform),
            ],
        )?),
        "match" if has("all") => Meeting::MatchAll(kind?),
        "match" => Meeting::MatchAny(kind?),
        "redux" => Meeting::Reduce(
            first(
                words,
                &[
                    ("add", Reduction::Add),
                    ("min", Reduction::Minimum),
                    ("max", Reduction::Maximum),
                    ("and", Reduction::And),
                    ("or", Reduction::Or),
                    ("xor", Reduction::Xor),
                ],
            )?,
            kind?,
        ),
        _ => return None,
    })
}
