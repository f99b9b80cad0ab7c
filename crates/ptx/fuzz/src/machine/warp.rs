//! What threads wait for: barriers of the block (PTX ISA §9.7.13.1) and operations of the warp (§9.7.13.8 to §9.7.13.11).

use super::Block;
use super::parse::{Argument, Instruction, Program};
use super::thread::{State, Thread};
use crate::kind::{Kind, mask};

/// What a thread waits for, and what it brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Barrier number, threads expected where written, and the operand of a reduction.
    Barrier { number: u64, expected: Option<u64>, input: u64 },
    /// Lanes that must come to this instruction, the operands, and the mask.
    Warp { members: u64, inputs: [u64; 3] },
    /// A `bar.arrive` already passed on: counted until its barrier completes.
    None,
}

const PREDICATE: Kind = Kind::PREDICATE;

impl Block<'_> {
    /// Lets the thread wait at the instruction, which lies behind it.
    pub(super) fn wait(&mut self, thread: &mut Thread, instruction: &Instruction, words: &[&str]) -> Result<(), String> {
        let arguments = &instruction.arguments;
        let b32 = |block: &Self, thread: &Thread, argument: &Argument| block.get(thread, argument, Kind::B32);
        let all_lanes = mask(32);
        let wait = match (instruction.opcode.as_str(), words) {
            ("bar", ["warp", "sync"]) => Wait::Warp {
                members: b32(self, thread, &arguments[0])?,
                inputs: [0; 3],
            },
            ("bar" | "barrier", words) if words.contains(&"red") => {
                // d or p, barrier, [count,] predicate.
                let (last, counts) = arguments[1..].split_last().ok_or("no operands")?;
                Wait::Barrier {
                    number: b32(self, thread, &counts[0])?,
                    expected: counts.get(1).map(|count| b32(self, thread, count)).transpose()?,
                    input: self.get(thread, last, PREDICATE)?,
                }
            }
            ("bar" | "barrier", words) if words.contains(&"arrive") => {
                return Err("bar.arrive is for programs whose order does not matter".to_owned());
            }
            ("bar" | "barrier", _) => Wait::Barrier {
                number: b32(self, thread, &arguments[0])?,
                expected: arguments.get(1).map(|count| b32(self, thread, count)).transpose()?,
                input: 0,
            },
            ("shfl", _) => Wait::Warp {
                members: b32(self, thread, arguments.get(4).ok_or("shfl without a mask")?)?,
                inputs: [
                    b32(self, thread, &arguments[1])?,
                    b32(self, thread, &arguments[2])?,
                    b32(self, thread, &arguments[3])?,
                ],
            },
            ("vote", _) => Wait::Warp {
                members: arguments.get(2).map_or(Ok(all_lanes), |argument| b32(self, thread, argument))?,
                inputs: [self.get(thread, &arguments[1], PREDICATE)?, 0, 0],
            },
            ("match", _) | ("redux", _) => {
                let kind = words.last().and_then(|word| Kind::from_name(word)).ok_or("an unknown type")?;
                Wait::Warp {
                    members: b32(self, thread, &arguments[2])?,
                    inputs: [self.get(thread, &arguments[1], kind)?, 0, 0],
                }
            }
            (opcode, _) => return Err(format!("unknown {opcode}")),
        };
        if let Wait::Warp { members, .. } = wait
            && members >> (thread.linear % 32) & 1 == 0
        {
            return Err(format!("lane {} is not in its own mask {members:#x}", thread.linear % 32));
        }
        thread.state = State::Waiting(wait);
        Ok(())
    }
}

/// The instruction that a waiting thread stands behind.
fn instruction<'a>(program: &'a Program, thread: &Thread) -> Option<&'a Instruction> {
    let frame = thread.frames.last()?;
    program.functions[frame.function].code.get(frame.pc.checked_sub(1)?)
}

/// Lets the threads of complete barriers go on. Says whether there were any.
pub(super) fn release_barriers(threads: &mut [Thread]) -> bool {
    let alive = threads.iter().filter(|thread| thread.state != State::Ended).count() as u64;
    let mut released = false;
    for barrier in 0..16 {
        let mut inputs = Vec::new();
        let mut expected = alive;
        for thread in threads.iter() {
            if let State::Waiting(Wait::Barrier {
                number,
                expected: written,
                input,
            }) = &thread.state
                && *number == barrier
            {
                inputs.push(*input);
                expected = written.unwrap_or(alive);
            }
        }
        if inputs.is_empty() || (inputs.len() as u64) < expected {
            continue;
        }
        let count = inputs.iter().sum::<u64>();
        let total = inputs.len() as u64;
        for thread in threads.iter_mut() {
            if matches!(&thread.state, State::Waiting(Wait::Barrier { number, .. }) if *number == barrier) {
                thread.state = State::Waiting(Wait::None);
                thread.barrier_result(count, total);
                released = true;
            }
        }
    }
    released
}

impl Thread {
    /// Keeps the counts of a completed barrier until [`finish_barrier`](Self::finish_barrier) writes them.
    fn barrier_result(&mut self, set: u64, total: u64) {
        self.reduction = Some((set, total));
    }

    /// Writes a barrier's reduction, where one was asked for, and goes on.
    fn finish_barrier(&mut self, program: &Program) -> Result<(), String> {
        let Some((set, total)) = self.reduction.take() else { return Ok(()) };
        self.state = State::Running;
        let Some(instruction) = instruction(program, self) else {
            return Ok(());
        };
        if !instruction.words.iter().any(|word| word == "red") {
            return Ok(());
        }
        let has = |name: &str| instruction.words.iter().any(|word| word == name);
        let value = if has("popc") {
            set
        } else if has("and") {
            u64::from(set == total)
        } else {
            u64::from(set > 0)
        };
        self.set(program, &instruction.arguments[0], value)
    }
}

/// Lets warps go on whose lanes have come together, and threads whose barrier is complete.
pub(super) fn release_warps(program: &Program, threads: &mut [Thread]) -> Result<bool, String> {
    let mut released = false;
    for thread in threads.iter_mut() {
        if thread.state == State::Waiting(Wait::None) {
            thread.finish_barrier(program)?;
            released = true;
        }
    }
    for warp in threads.chunks_mut(32) {
        for lane in 0..warp.len() {
            let State::Waiting(Wait::Warp { members, .. }) = warp[lane].state else {
                continue;
            };
            let place = warp[lane].frames.last().map(|frame| (frame.function, frame.pc));
            let lanes: Vec<usize> = (0..32).filter(|other| members >> other & 1 == 1).collect();
            let come = lanes.iter().all(|other| {
                warp.get(*other).is_some_and(|thread| {
                    matches!(thread.state, State::Waiting(Wait::Warp { members: theirs, .. }) if theirs == members)
                        && thread.frames.last().map(|frame| (frame.function, frame.pc)) == place
                })
            });
            if come {
                exchange(program, warp, &lanes)?;
                released = true;
            }
        }
    }
    Ok(released)
}

fn exchange(program: &Program, warp: &mut [Thread], lanes: &[usize]) -> Result<(), String> {
    let inputs: Vec<(usize, [u64; 3])> = lanes
        .iter()
        .filter_map(|lane| match warp[*lane].state {
            State::Waiting(Wait::Warp { inputs, .. }) => Some((*lane, inputs)),
            _ => None,
        })
        .collect();
    for (lane, own) in &inputs {
        let thread = &mut warp[*lane];
        let Some(instruction) = instruction(program, thread) else {
            continue;
        };
        let has = |name: &str| instruction.words.iter().any(|word| word == name);
        let of = |wanted: u64| {
            inputs
                .iter()
                .find(|(other, _)| *other as u64 == wanted)
                .map(|(_, inputs)| inputs[0])
        };
        let kind = instruction.words.last().and_then(|word| Kind::from_name(word)).unwrap_or(Kind::B32);
        let (first, second) = match instruction.opcode.as_str() {
            "shfl" => {
                let (inside, source) = shuffled(*lane as u64, own[1], own[2], &instruction.words);
                // A lane out of range, and one that does not take part, gives the own value.
                (if inside { of(source).unwrap_or(own[0]) } else { own[0] }, Some(u64::from(inside)))
            }
            "vote" => {
                let set = inputs.iter().filter(|(_, inputs)| inputs[0] == 1).count();
                let value = if has("ballot") {
                    inputs
                        .iter()
                        .filter(|(_, inputs)| inputs[0] == 1)
                        .map(|(lane, _)| 1u64 << lane)
                        .sum()
                } else {
                    u64::from(if has("all") {
                        set == inputs.len()
                    } else if has("any") {
                        set > 0
                    } else {
                        set == 0 || set == inputs.len()
                    })
                };
                (value, None)
            }
            "match" => {
                let same: u64 = inputs
                    .iter()
                    .filter(|(_, inputs)| inputs[0] == own[0])
                    .map(|(lane, _)| 1u64 << lane)
                    .sum();
                let all = inputs.iter().all(|(_, inputs)| inputs[0] == own[0]);
                if has("all") {
                    (if all { same } else { 0 }, Some(u64::from(all)))
                } else {
                    (same, None)
                }
            }
            "redux" => {
                let values = inputs.iter().map(|(_, inputs)| inputs[0]);
                let numbers = inputs.iter().map(|(_, inputs)| kind.integer(inputs[0]));
                let value = if has("add") {
                    kind.wrap(numbers.sum())
                } else if has("min") {
                    kind.wrap(numbers.min().unwrap_or(0))
                } else if has("max") {
                    kind.wrap(numbers.max().unwrap_or(0))
                } else if has("and") {
                    values.fold(u64::MAX, |a, b| a & b)
                } else if has("or") {
                    values.fold(0, |a, b| a | b)
                } else {
                    values.fold(0, |a, b| a ^ b)
                };
                (value, None)
            }
            _ => (0, None),
        };
        thread.state = State::Running;
        match (&instruction.arguments[0], second) {
            (Argument::Pair(target, predicate), Some(second)) => {
                thread.set(program, target, first)?;
                thread.set(program, predicate, second)?;
            }
            (_, _) if instruction.opcode == "bar" => {}
            (target, _) => thread.set(program, target, first)?,
        }
    }
    Ok(())
}

/// Whether the source lane is in range, and which it is (PTX ISA §9.7.9.6).
fn shuffled(lane: u64, b: u64, c: u64, words: &[String]) -> (bool, u64) {
    let has = |name: &str| words.iter().any(|word| word == name);
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let highest = lane & segment | clamp & !segment;
    let lowest = lane & segment;
    let source = if has("up") {
        lane as i64 - b as i64
    } else if has("down") {
        (lane + b) as i64
    } else if has("bfly") {
        (lane ^ b) as i64
    } else {
        (lowest | b & !segment) as i64
    };
    let inside = if has("up") {
        source >= highest as i64
    } else {
        source <= highest as i64
    };
    (inside, if inside { source as u64 } else { lane })
}
