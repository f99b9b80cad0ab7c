//! Decision when to compress a part of a tensor. Uploads of clients and downloads from executors follow the same rule.
//!
//! ```text
//! writer ── wakes, wrote ──► Link: bytes per second that the connection accepts
//!                              │
//! next part ── trial ──► Compression ──► Trial ── run (any thread) ──► Tried ──► Compression: ratio and speed
//! ```
//!
//! Suppose that compression reduces a part to `ratio` of its size at `speed` bytes per second, the connection transfers `rate` bytes per
//! second, and the peer decodes to `decoding` bytes per second. Then the compressed part takes `max(rate / speed + ratio, rate / decoding)`
//! of the time of the raw part. None of these values is configured: the duration of writes shows the connection's rate; a sample, and then
//! every compressed part, shows ratio and speed; the peer reports its decoding rate. `docs/adr/0019` contains the measurements.
//!
//! The module reads no clock, except in [`Trial::run`], and uses no threads. Callers pass the current time.
//!

use std::time::Instant;

use bytes::Bytes;

use super::{Encoder, Encoding, PART_BYTES, Part};

mod link;
#[cfg(test)]
mod tests;

use link::Link;

/// Rate in bytes per second above which nothing is compressed: decoding, and its effect on the rest of the machine, then costs about as
/// much time as compression saves.
pub const FASTEST_LINK: f64 = 400e6;
/// Size in bytes below which parts are sent raw.
pub const SMALLEST_BYTES: usize = 64 << 10;
/// Largest relative cost (compressed time divided by raw time) at which to start compressing (`BEGIN`) and to continue (`GO_ON`).
const BEGIN: f64 = 0.9;
const GO_ON: f64 = 0.96;
/// Maximum number of parts between two samples of data that did not compress.
const MAX_SKIPPED: u32 = 64;
/// Weight of the newest part in the moving averages.
const NEWEST: f64 = 0.25;

/// Policy of when to compress parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    Never,
    /// Compress parts that arrive sooner when compressed.
    #[default]
    WhereItPays,
    /// Compress all parts that become shorter, because bytes are more expensive than time.
    Always,
}

/// Result of compressing a part or a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    /// Compressed size divided by original size.
    ratio: f64,
    /// Compression time per original byte, in seconds.
    seconds: f64,
    /// Element width in bytes with which the data was encoded; 1 if it was not shuffled.
    width: u32,
}

impl Outcome {
    /// Returns the time of the compressed part divided by the time of the raw part on this connection. Without a connection, returns the
    /// ratio of the sizes.
    fn cost(&self, rates: Option<Rates>) -> f64 {
        rates.map_or(self.ratio, |rates| {
            (rates.rate * self.seconds + self.ratio).max(rates.rate * rates.decoding)
        })
    }
}

/// Speed of a connection, and of the decoder at its other end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rates {
    /// Rate of the connection in bytes per second.
    rate: f64,
    /// Decoding time per decoded byte, in seconds; 0 if unknown.
    decoding: f64,
}

/// Compression results so far for data with elements of one width.
#[derive(Clone, Copy, Debug, Default)]
struct Data {
    known: Option<Outcome>,
    /// Number of parts to send raw before the next sample (`skip`), and after that sample if it fails too (`next_skip`).
    skip: u32,
    next_skip: u32,
}

impl Data {
    fn fails(&mut self) {
        self.known = None;
        self.skip = self.next_skip.max(1);
        self.next_skip = (2 * self.skip).min(MAX_SKIPPED);
    }
}

/// Compression state of one direction of a connection, at the sender.
#[derive(Debug)]
pub struct Compression {
    mode: Mode,
    shuffles: bool,
    link: Link,
    /// Decoding time of the peer per decoded byte in seconds, as reported by the peer.
    decoding: f64,
    data: [Data; 4],
}

/// Decision whether to compress one part of a tensor. [`Trial::run`] makes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Connection for which to optimize. `None` if compression is accepted whenever it makes the part shorter.
    rates: Option<Rates>,
    /// Whether to compress a sample first.
    samples: bool,
    /// Element width in bytes (`width`), and the width to encode with if no sample is taken (`encodes`).
    width: u32,
    encodes: u32,
}

/// Result of a [`Trial`].
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// The encoded part to send instead of the raw one.
    pub encoded: Option<(Part, Bytes)>,
    width: u32,
    outcome: Outcome,
    pays: bool,
}

impl Compression {
    /// Creates the state for a peer that decodes the encodings `taken` (values of [`Encoding`]).
    pub fn new(mode: Mode, taken: &[i32]) -> Self {
        let takes = |encoding: Encoding| taken.contains(&encoding.into());
        Self {
            // Both encodings need [`Encoding::Lz4`], because elements of one byte are never shuffled.
            mode: if takes(Encoding::Lz4) { mode } else { Mode::Never },
            shuffles: takes(Encoding::ShuffledLz4),
            link: Link::default(),
            decoding: 0.0,
            data: [Data::default(); 4],
        }
    }

    /// Records that the sender has data to write after a pause.
    pub fn wakes(&mut self, now: Instant) {
        self.link.wakes(now);
    }

    /// Records that the connection accepted `bytes` bytes between `began` and `ended`. `decoded` is their size before compression.
    pub fn wrote(&mut self, bytes: usize, decoded: usize, began: Instant, ended: Instant) {
        self.link.wrote(bytes, decoded, began, ended);
    }

    /// Records the decoding rate that the peer reported, in decoded bytes per second. 0 means that the peer has not decoded anything, and
    /// is ignored.
    pub fn decodes(&mut self, bytes_a_second: u64) {
        if bytes_a_second > 0 {
            self.decoding = 1.0 / bytes_a_second as f64;
        }
    }

    /// Returns whether compression is off or the connection is known to be too fast for it. The sender may write large amounts at a time
    /// then.
    pub fn is_idle(&self) -> bool {
        self.mode == Mode::Never || (self.mode == Mode::WhereItPays && self.link.rate().is_some_and(|rate| rate > FASTEST_LINK))
    }

    /// Returns a trial if the next part, of `bytes` bytes with elements of `width` bytes, may be worth compressing. `is_first` says whether
    /// the part is the first of its tensor, as far as known.
    pub fn trial(&mut self, bytes: usize, width: u32, is_first: bool) -> Option<Trial> {
        let width = if self.shuffles { width } else { 1 };
        let mut trial = Trial {
            rates: None,
            samples: true,
            width,
            encodes: width,
        };
        match self.mode {
            Mode::Never => return None,
            Mode::Always => return (bytes <= PART_BYTES).then_some(trial),
            Mode::WhereItPays => {}
        }
        let rate = self.link.rate().filter(|rate| *rate <= FASTEST_LINK)?;
        if !(SMALLEST_BYTES..=PART_BYTES).contains(&bytes) {
            return None;
        }
        let rates = Rates {
            rate,
            decoding: self.decoding,
        };
        trial.rates = Some(rates);
        let data = &mut self.data[slot(width)];
        if let Some(known) = data.known
            && !is_first
        {
            if known.cost(trial.rates) <= GO_ON {
                (trial.samples, trial.encodes) = (false, known.width);
                return Some(trial);
            }
            data.fails();
        }
        // A new tensor may hold different data. Small tensors can be frequent, so they are sampled no more often than parts of large
        // tensors.
        if data.skip > 0 && !(is_first && bytes == PART_BYTES) {
            data.skip -= 1;
            return None;
        }
        // A peer that decodes slowly receives an encoded part now and then, because otherwise it could not report that it has become
        // faster.
        if data.next_skip >= MAX_SKIPPED {
            trial.rates = Some(Rates { decoding: 0.0, ..rates });
        }
        Some(trial)
    }

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
    /// Returns whether compression pays. `begins` selects the stricter limit that applies if similar data was not compressed before.
    fn pays(&self, outcome: Outcome, begins: bool) -> bool {
        let most = match (self.rates, begins) {
            (None, _) => 1.0,
            (Some(_), true) => BEGIN,
            (Some(_), false) => GO_ON,
        };
        outcome.cost(self.rates) <= most
    }

    /// Compresses the part, or finds out that compression does not pay. Takes some milliseconds.
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
                if shuffled.cost(self.rates) < best.cost(self.rates) {
                    best = shuffled;
                }
            }
            if self.rates.is_some() && !self.pays(best, true) {
                return self.tried(None, best, false);
            }
            width = best.width;
        }
        let began = Instant::now();
        let most = match self.rates {
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
