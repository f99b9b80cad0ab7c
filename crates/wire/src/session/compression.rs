//! When a part of a tensor is worth compressing: the same rule for a client's uploads and an executor's downloads.
//!
//! ```text
//!  writer ── wakes, wrote ──► Line: bytes a second that the connection takes
//!                               │
//!  next part ── trial ──► Compression ──► Trial ── run (any thread) ──► Tried ──► Compression: how short, how fast
//! ```
//!
//! A part that is as long as `ratio` of itself when it is compressed, at `speed` bytes a second, over a line of `rate`, to a peer that decodes to
//! `decoding` bytes a second, costs `max(rate / speed + ratio, rate / decoding)` of the time that it takes as it is. Nothing of that is
//! configured: a line's rate shows in how long writes wait for it, ratio and speed in a sample, and then in every part that goes
//! compressed; the peer tells the rate of its decoding. `docs/adr/0019` has what was measured.
//!
//! It knows no clock but what it is told, and no thread: [`Trial::run`] alone does anything, and takes its own time.

use std::time::Instant;

use bytes::Bytes;

use super::{Encoder, Encoding, PART_BYTES, Part};

mod line;
#[cfg(test)]
mod tests;

use line::Line;

/// Bytes a second from which on a line is left alone: to decode, and what a machine does besides, then costs about as much as it saves.
pub const FASTEST_LINE: f64 = 400e6;
/// Parts that are smaller go as they are.
pub const SMALLEST_BYTES: usize = 64 << 10;
/// To begin, a part has to cost no more than this share of the time that it takes as it is; to go on, no more than that.
const BEGIN: f64 = 0.9;
const GO_ON: f64 = 0.96;
/// Most parts of a tensor between two samples, of a kind that did not compress.
const MOST_SKIPPED: u32 = 64;
/// Weight of the newest part.
const NEWEST: f64 = 0.25;

/// When to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    Never,
    /// Where it makes a part arrive sooner.
    #[default]
    WhereItPays,
    /// Wherever it makes a part shorter: where bytes cost more than time.
    Always,
}

/// How compressing went.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    /// Share of its bytes that a part becomes.
    ratio: f64,
    /// That a byte takes.
    seconds: f64,
    /// The width of elements that it was encoded with: 1 where nothing was shuffled.
    width: u32,
}

impl Outcome {
    /// Share of the time that a part takes as it is over this line; of its bytes, where no line is given.
    fn cost(&self, way: Option<Way>) -> f64 {
        way.map_or(self.ratio, |way| {
            (way.rate * self.seconds + self.ratio).max(way.rate * way.decoding)
        })
    }
}

/// A line, and who decodes at its end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    /// Bytes a second.
    rate: f64,
    /// Seconds that decoding to a byte takes; 0 where that is not known.
    decoding: f64,
}

/// What is known of elements of one width.
#[derive(Clone, Copy, Debug, Default)]
struct Data {
    known: Option<Outcome>,
    /// Parts that go as they are before the next sample; and how many after that one, if it is no better.
    skip: u32,
    next_skip: u32,
}

impl Data {
    fn fails(&mut self) {
        self.known = None;
        self.skip = self.next_skip.max(1);
        self.next_skip = (2 * self.skip).min(MOST_SKIPPED);
    }
}

/// One direction of one connection, at its sender.
#[derive(Debug)]
pub struct Compression {
    mode: Mode,
    shuffles: bool,
    line: Line,
    /// Seconds in which the peer decodes to a byte, as it says.
    decoding: f64,
    data: [Data; 4],
}

/// A part is to be compressed, perhaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// None where it does not matter.
    way: Option<Way>,
    /// A sample decides first.
    samples: bool,
    /// Of the elements, and the one to encode with where no sample says.
    width: u32,
    encodes: u32,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// The part to send instead.
    pub encoded: Option<(Part, Bytes)>,
    /// Of the elements.
    width: u32,
    /// Of the part, or of its sample.
    outcome: Outcome,
    pays: bool,
}

impl Compression {
    /// For a peer that takes these encodings.
    pub fn new(mode: Mode, taken: &[i32]) -> Self {
        let takes = |encoding: Encoding| taken.contains(&encoding.into());
        Self {
            // Elements of one byte are never shuffled.
            mode: if takes(Encoding::Lz4) { mode } else { Mode::Never },
            shuffles: takes(Encoding::ShuffledLz4),
            line: Line::default(),
            decoding: 0.0,
            data: [Data::default(); 4],
        }
    }

    /// There is something to write after a while in which there was nothing.
    pub fn wakes(&mut self, now: Instant) {
        self.line.wakes(now);
    }

    /// The connection took so many bytes between these times; as they were before they were compressed they were so many.
    pub fn wrote(&mut self, bytes: usize, decoded: usize, began: Instant, ended: Instant) {
        self.line.wrote(bytes, decoded, began, ended);
    }

    /// The peer says that it decodes to so many bytes a second; 0 where it has decoded nothing.
    pub fn decodes(&mut self, bytes_a_second: u64) {
        if bytes_a_second > 0 {
            self.decoding = 1.0 / bytes_a_second as f64;
        }
    }

    /// Bytes a second that the line takes, where that is known.
    pub fn rate(&self) -> Option<f64> {
        self.line.rate()
    }

    /// Whether the line is known to be left alone: much may be written at a time.
    pub fn is_idle(&self) -> bool {
        self.mode == Mode::Never || (self.mode == Mode::WhereItPays && self.line.rate().is_some_and(|rate| rate > FASTEST_LINE))
    }

    /// Whether to try and compress the next part, of so many bytes, of elements that are so wide; `is_first` of its tensor, as far as known.
    pub fn trial(&mut self, bytes: usize, width: u32, is_first: bool) -> Option<Trial> {
        let width = if self.shuffles { width } else { 1 };
        let mut trial = Trial {
            way: None,
            samples: true,
            width,
            encodes: width,
        };
        match self.mode {
            Mode::Never => return None,
            Mode::Always => return (bytes <= PART_BYTES).then_some(trial),
            Mode::WhereItPays => {}
        }
        let rate = self.line.rate().filter(|rate| *rate <= FASTEST_LINE)?;
        if !(SMALLEST_BYTES..=PART_BYTES).contains(&bytes) {
            return None;
        }
        let way = Way {
            rate,
            decoding: self.decoding,
        };
        trial.way = Some(way);
        let data = &mut self.data[slot(width)];
        if let Some(known) = data.known
            && !is_first
        {
            if known.cost(trial.way) <= GO_ON {
                (trial.samples, trial.encodes) = (false, known.width);
                return Some(trial);
            }
            data.fails();
        }
        // A tensor of its own may be of another kind. Small ones come often: no more of them are looked at than parts of large ones.
        if data.skip > 0 && !(is_first && bytes == PART_BYTES) {
            data.skip -= 1;
            return None;
        }
        // A peer that decodes slowly is given a part now and then, or it could not tell that it has become faster.
        if data.next_skip >= MOST_SKIPPED {
            trial.way = Some(Way { decoding: 0.0, ..way });
        }
        Some(trial)
    }

    /// What became of a trial.
    pub fn tried(&mut self, tried: &Tried) {
        let data = &mut self.data[slot(tried.width)];
        if !tried.pays {
            data.fails();
            return;
        }
        let new = tried.outcome;
        let known = data.known.filter(|known| known.width == new.width).unwrap_or(new);
        let known = Outcome {
            ratio: known.ratio + NEWEST * (new.ratio - known.ratio),
            seconds: known.seconds + NEWEST * (new.seconds - known.seconds),
            width: new.width,
        };
        *data = Data {
            known: Some(known),
            ..Data::default()
        };
    }
}

fn slot(width: u32) -> usize {
    match width {
        2 => 1,
        4 => 2,
        8 => 3,
        _ => 0,
    }
}

impl Trial {
    /// Whether it is worth it; `begins` where nothing like it was.
    fn pays(&self, outcome: Outcome, begins: bool) -> bool {
        let most = match (self.way, begins) {
            (None, _) => 1.0,
            (Some(_), true) => BEGIN,
            (Some(_), false) => GO_ON,
        };
        outcome.cost(self.way) <= most
    }

    /// Compresses, or finds out that it would not pay. It takes some milliseconds.
    pub fn run(self, encoder: &mut Encoder, raw: &[u8]) -> Tried {
        let mut width = self.encodes;
        if self.samples {
            let mut sample = |width| {
                let began = Instant::now();
                let (before, after) = encoder.sample(raw, width);
                outcome(began, before, after, width)
            };
            let mut best = sample(1);
            if self.width > 1 {
                let shuffled = sample(self.width);
                if shuffled.cost(self.way) < best.cost(self.way) {
                    best = shuffled;
                }
            }
            if self.way.is_some() && !self.pays(best, true) {
                return self.tried(None, best, false);
            }
            width = best.width;
        }
        let began = Instant::now();
        let most = match self.way {
            Some(_) => (raw.len() as f64 * GO_ON) as usize,
            None => raw.len(),
        };
        let encoded = encoder.encode(raw, width, most);
        let bytes = encoded.as_ref().map_or(raw.len(), |(_, payload)| payload.len());
        let outcome = outcome(began, raw.len(), bytes, width);
        let pays = encoded.is_some() && self.pays(outcome, self.samples);
        self.tried(encoded, outcome, pays)
    }

    fn tried(self, encoded: Option<(Part, Bytes)>, outcome: Outcome, pays: bool) -> Tried {
        Tried {
            encoded,
            width: self.width,
            outcome,
            pays,
        }
    }
}

fn outcome(began: Instant, before: usize, after: usize, width: u32) -> Outcome {
    let before = before.max(1) as f64;
    Outcome {
        ratio: after as f64 / before,
        seconds: began.elapsed().as_secs_f64() / before,
        width,
    }
}
