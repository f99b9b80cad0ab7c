//! Synchronisation of threads: barriers of the block (PTX ISA §9.7.13.1) and operations of the warp (§9.7.13.8 to §9.7.13.11).

use super::Block;
use super::program::{Argument, Meeting, Operation, Program, Reduction, Shuffle, Vote};
use super::thread::{State, Thread};
use crate::kind::{Kind, mask};

/// Condition that a thread waits for, and its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Completion of a barrier.
    Barrier { number: usize },
    /// Arrival of the member lanes at this instruction.
    Warp { members: u64, inputs: [u64; 3] },
}

/// One of a block's 16 barriers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Barrier {
    /// Number of threads that arrived.
    come: u64,
    /// Lanes that arrived, warp by warp.
    lanes: [u32; 32],
    /// Number of waiting threads whose operand is true.
    set: u64,
    /// Number of threads required by the instruction; all that have not ended if `None`.
    expected: Option<u64>,
}

impl Barrier {
    /// Whether the barrier is complete. `alive` are the lanes that have not ended, warp by warp.
    fn is_complete(&self, alive: &[u32; 32]) -> bool {
        let Some(expected) = self.expected else {
            let all: u32 = alive.iter().map(|lanes| lanes.count_ones()).sum();
            return self.come > 0 && self.come >= u64::from(all);
        };
        // Warps arrive as a whole: with all 32 lanes, once all live lanes have arrived.
        let arrived: u32 = self
            .lanes
            .iter()
            .zip(alive)
            .filter(|(come, _)| **come != 0)
            .map(|(come, alive)| 32 - (alive & !come).count_ones())
            .sum();
        u64::from(arrived) >= expected && self.come > 0
    }
}

impl Block<'_> {
    /// Makes the thread wait at the instruction that precedes its program counter.
    pub(super) fn meet(&mut self, thread: &mut Thread, meeting: Meeting, arguments: &[Argument]) -> Result<(), String> {
        let b32 = |index: usize| {
            let argument = arguments.get(index).ok_or("an operand is missing")?;
            self.get(thread, argument, Kind::B32)
        };
        let typed = |index: usize, kind: Kind| {
            let argument = arguments.get(index).ok_or("an operand is missing")?;
            self.get(thread, argument, kind)
        };
        let counted = |index: usize| if index < arguments.len() { b32(index).map(Some) } else { Ok(None) };
        let wait = match meeting {
            // Operands: barrier, and optionally a count.
            Meeting::Barrier(None) => return self.reach(thread, b32(0)?, counted(1)?, Some(0)),
            Meeting::Arrival => return self.reach(thread, b32(0)?, counted(1)?, None),
            // Operands: result, barrier, optionally a count, predicate.
            Meeting::Barrier(Some(_)) => {
                let last = arguments.len().checked_sub(1).ok_or("no operands")?;
                let count = if last > 2 { Some(b32(2)?) } else { None };
                return self.reach(thread, b32(1)?, count, Some(typed(last, Kind::PREDICATE)?));
            }
            Meeting::WarpBarrier => (b32(0)?, [0; 3]),
            Meeting::Shuffle(_) => (b32(4)?, [b32(1)?, b32(2)?, b32(3)?]),
            Meeting::Vote(_) => (counted(2)?.unwrap_or(mask(32)), [typed(1, Kind::PREDICATE)?, 0, 0]),
            Meeting::MatchAny(kind) | Meeting::MatchAll(kind) | Meeting::Reduce(_, kind) => (b32(2)?, [typed(1, kind)?, 0, 0]),
        };
        let (members, inputs) = wait;
        let lane = thread.linear % 32;
        if members >> lane & 1 == 0 {
            return Err(format!("lane {lane} is not in its own mask {members:#x}"));
        }
        thread.state = State::Waiting(Wait::Warp { members, inputs });
        Ok(())
    }

    /// Records the arrival of a thread at a barrier. The thread waits if it has an input, and continues otherwise.
    fn reach(&mut self, thread: &mut Thread, number: u64, expected: Option<u64>, input: Option<u64>) -> Result<(), String> {
        let number = number as usize;
        let barrier = self.barriers.get_mut(number).ok_or_else(|| format!("barrier {number}"))?;
        barrier.expected = expected;
        barrier.come += 1;
        barrier.lanes[thread.linear as usize / 32] |= 1 << (thread.linear % 32);
        if let Some(input) = input {
            barrier.set += input;
            thread.state = State::Waiting(Wait::Barrier { number });
        }
        Ok(())
    }

    /// Releases the threads of complete barriers. Returns whether there were any.
    pub(super) fn release_barriers(&mut self, threads: &mut [Thread]) -> Result<bool, String> {
        let mut alive = [0u32; 32];
        for thread in threads.iter().filter(|thread| thread.state != State::Ended) {
            alive[thread.linear as usize / 32] |= 1 << (thread.linear % 32);
        }
        let complete = self.barriers.map(|barrier| barrier.is_complete(&alive));
        for thread in threads.iter_mut() {
            let State::Waiting(Wait::Barrier { number }) = thread.state else {
                continue;
            };
            if !complete[number] {
                continue;
            }
            thread.state = State::Running;
            let instruction = thread.instruction(self.program).ok_or("a wait at no instruction")?;
            if let Operation::Meet(Meeting::Barrier(Some(vote))) = instruction.operation {
                let barrier = self.barriers[number];
                let all = barrier.set == barrier.come;
                let value = match vote {
                    Vote::Count => barrier.set,
                    Vote::All => u64::from(all),
                    _ => u64::from(barrier.set > 0),
                };
                thread.set(self.program, &instruction.arguments[0], value)?;
            }
        }
        for (barrier, complete) in self.barriers.iter_mut().zip(complete) {
            if complete {
                *barrier = Barrier::default();
            }
        }
        Ok(complete.contains(&true))
    }

    /// Releases the warps whose lanes have met. Returns whether there were any.
    pub(super) fn release_warps(&self, threads: &mut [Thread]) -> Result<bool, String> {
        let mut released = false;
        for warp in threads.chunks_mut(32) {
            let mut seen = 0u64;
            for lane in 0..warp.len() {
                let State::Waiting(Wait::Warp { members, .. }) = warp[lane].state else {
                    continue;
                };
                if seen >> lane & 1 == 1 {
                    continue;
                }
                let place = place(&warp[lane]);
                let mut here = 0u64;
                let mut missing = false;
                for (other, thread) in warp.iter().enumerate().filter(|(other, _)| members >> other & 1 == 1) {
                    let same = |theirs: u64| theirs == members && self::place(thread) == place;
                    match thread.state {
                        State::Waiting(Wait::Warp { members, .. }) if same(members) => here |= 1 << other,
                        // Threads that have ended are not waited for.
                        State::Ended => {}
                        _ => missing = true,
                    }
                }
                seen |= here;
                if !missing {
                    exchange(self.program, warp, here)?;
                    released = true;
                }
            }
        }
        Ok(released)
    }
}

/// Function and program counter of a thread.
fn place(thread: &Thread) -> Option<(usize, usize)> {
    thread.frames.last().map(|frame| (frame.function, frame.pc))
}

/// Performs the operation at which the lanes wait, and releases them.
fn exchange(program: &Program, warp: &mut [Thread], here: u64) -> Result<(), String> {
    let inputs: Vec<(usize, [u64; 3])> = warp
        .iter()
        .enumerate()
        .filter_map(|(lane, thread)| match thread.state {
            State::Waiting(Wait::Warp { inputs, .. }) if here >> lane & 1 == 1 => Some((lane, inputs)),
            _ => None,
        })
        .collect();
    // Returns the lanes whose first operand is this value.
    let with = |value: u64| {
        inputs
            .iter()
            .filter(|(_, inputs)| inputs[0] == value)
            .fold(0u64, |found, (lane, _)| found | 1 << lane)
    };
    for (lane, own) in &inputs {
        let thread = &mut warp[*lane];
        thread.state = State::Running;
        let instruction = thread.instruction(program).ok_or("a wait at no instruction")?;
        let Operation::Meet(meeting) = instruction.operation else {
            return Err("a wait at an instruction for one thread".to_owned());
        };
        let (first, second) = match meeting {
            Meeting::Shuffle(mode) => {
                let (inside, source) = shuffled(*lane as u64, own[1], own[2], mode);
                let theirs = inputs.iter().find(|(other, _)| *other as u64 == source);
                // If the source lane is out of range or does not take part, the result is the lane's own value.
                let value = theirs.filter(|_| inside).map_or(own[0], |(_, inputs)| inputs[0]);
                (value, u64::from(inside))
            }
            Meeting::Vote(vote) => {
                let set = with(1);
                let holds = match vote {
                    Vote::Ballot | Vote::Count => set,
                    Vote::All => u64::from(set == here),
                    Vote::Any => u64::from(set != 0),
                    Vote::Uniform => u64::from(set == 0 || set == here),
                };
                (holds, 0)
            }
            Meeting::MatchAny(_) => (with(own[0]), 0),
            Meeting::MatchAll(_) if with(own[0]) == here => (here, 1),
            Meeting::MatchAll(_) => (0, 0),
            Meeting::Reduce(reduction, kind) => (reduced(reduction, kind, inputs.iter().map(|(_, inputs)| inputs[0])), 0),
            Meeting::WarpBarrier | Meeting::Barrier(_) | Meeting::Arrival => continue,
        };
        match &instruction.arguments[0] {
            Argument::Pair(target, predicate) => {
                thread.set(program, target, first)?;
                thread.set(program, predicate, second)?;
            }
            target => thread.set(program, target, first)?,
        }
    }
    Ok(())
}

fn reduced(reduction: Reduction, kind: Kind, values: impl Iterator<Item = u64>) -> u64 {
    let number = |bits: u64| kind.integer(bits);
    values
        .reduce(|a, b| match reduction {
            Reduction::Add => kind.wrap(number(a) + number(b)),
            Reduction::Minimum => kind.wrap(number(a).min(number(b))),
            Reduction::Maximum => kind.wrap(number(a).max(number(b))),
            Reduction::And => a & b,
            Reduction::Or => a | b,
            Reduction::Xor => a ^ b,
        })
        .unwrap_or(0)
}

/// Returns whether the source lane is in range, and its index (PTX ISA §9.7.9.6).
fn shuffled(lane: u64, b: u64, c: u64, mode: Shuffle) -> (bool, u64) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let highest = lane & segment | clamp & !segment;
    let lowest = lane & segment;
    let source = match mode {
        Shuffle::Up => lane as i64 - b as i64,
        Shuffle::Down => (lane + b) as i64,
        Shuffle::Butterfly => (lane ^ b) as i64,
        Shuffle::Index => (lowest | b & !segment) as i64,
    };
    let inside = match mode {
        Shuffle::Up => source >= highest as i64,
        _ => source <= highest as i64,
    };
    (inside, if inside { source as u64 } else { lane })
}
