//! Tests of the compression rule on modelled connections, in virtual time.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// Rate in bytes per second at which buffers accept data.
const MEMORY: f64 = 3e9;

/// Compressibility of a tensor's data: compressed size divided by original size, and compression speed in bytes per second.
#[derive(Clone, Copy, Debug)]
struct Content {
    ratio: f64,
    speed: f64,
}

/// Model of a sender that does one thing at a time, and of a connection with a buffer in front of it.
struct World {
    compression: Compression,
    start: Instant,
    /// Virtual time in seconds since `start`.
    now: f64,
    rate: f64,
    room: f64,
    /// Bytes in the buffer, and the time at which this number was computed.
    waiting: (f64, f64),
    /// Rate in bytes per second at which the peer decodes, and the time at which it will have decoded everything written so far.
    decoding: f64,
    decoded_at: f64,
    /// Seconds spent on compression, numbers of encoded and raw parts, and number of changes between encoded and raw.
    compressing: f64,
    encoded: u32,
    raw: u32,
    /// Number of raw parts sent before the rate of the connection was known.
    measuring: u32,
    changes: u32,
    was_encoded: bool,
}

impl World {
    fn new(rate: f64, room: f64) -> Self {
        Self {
            compression: Compression::new(Mode::WhereItPays, &super::super::encodings()),
            start: Instant::now(),
            now: 0.0,
            rate,
            room,
            waiting: (0.0, 0.0),
            decoding: f64::INFINITY,
            decoded_at: 0.0,
            compressing: 0.0,
            encoded: 0,
            raw: 0,
            measuring: 0,
            changes: 0,
            was_encoded: false,
        }
    }

    fn time(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.now)
    }

    fn passes(&mut self, seconds: f64) {
        self.now += seconds;
        let (bytes, since) = self.waiting;
        self.waiting = ((bytes - (self.now - since) * self.rate).max(0.0), self.now);
    }

    fn write(&mut self, bytes: f64, decoded: usize) {
        let began = self.time();
        self.passes(bytes / MEMORY);
        let over = self.waiting.0 + bytes - self.room;
        if over > 0.0 {
            self.passes((over / self.rate).min((self.waiting.0 + bytes) / self.rate));
        }
        self.waiting.0 += bytes.min(self.room);
        let ended = self.time();
        self.compression.wrote(bytes as usize, decoded, began, ended);
    }

    fn try_part(&mut self, bytes: usize, is_first: bool, content: Content) -> f64 {
        let Some(trial) = self.compression.trial(bytes, 4, is_first) else {
            return bytes as f64;
        };
        let spend = |world: &mut Self, bytes: f64| {
            let seconds = bytes / content.speed;
            world.compressing += seconds;
            world.passes(seconds);
        };
        let outcome = Outcome {
            ratio: content.ratio,
            seconds: 1.0 / content.speed,
            width: 4,
        };
        if trial.samples {
            // A sample is taken with and without shuffling.
            spend(self, 2.0 * bytes as f64 / 16.0);
            if !trial.pays(outcome, true) {
                let tried = trial.tried(None, outcome, false);
                self.compression.tried(&tried);
                return bytes as f64;
            }
        }
        spend(self, bytes as f64);
        let is_shorter = content.ratio <= GO_ON;
        let encoded = is_shorter.then(|| (Part::default(), Bytes::new()));
        let pays = is_shorter && trial.pays(outcome, trial.samples);
        let tried = trial.tried(encoded, outcome, pays);
        self.compression.tried(&tried);
        if is_shorter { bytes as f64 * content.ratio } else { bytes as f64 }
    }

    fn tensor(&mut self, bytes: usize, content: Content) {
        let now = self.time();
        self.compression.wakes(now);
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PART_BYTES);
            let written = self.try_part(part, left == bytes, content);
            let is_encoded = written < part as f64;
            if is_encoded {
                self.encoded += 1;
            } else {
                self.raw += 1;
                self.measuring += u32::from(self.compression.link.rate().is_none());
            }
            self.changes += u32::from(is_encoded != self.was_encoded);
            self.was_encoded = is_encoded;
            self.write(written, part);
            if is_encoded {
                self.decode(part as f64);
            }
            left -= part;
        }
    }

    /// Lets the peer decode a part and, after the first 16, report its rate. The bytes that the peer has not decoded stay within the
    /// window.
    fn decode(&mut self, bytes: f64) {
        self.decoded_at = self.decoded_at.max(self.now) + bytes / self.decoding;
        let behind = self.decoded_at - self.now - WINDOW / self.decoding;
        if behind > 0.0 {
            self.passes(behind);
        }
        if self.encoded > 16 {
            self.compression.decodes(self.decoding.min(1e12) as u64);
        }
    }

    /// Advances the time until the last byte has been sent and decoded.
    fn drain(&mut self) -> f64 {
        self.passes(self.waiting.0 / self.rate);
        self.passes((self.decoded_at - self.now).max(0.0));
        self.now
    }
}

const MEBIBYTE: usize = 1 << 20;
/// Window in bytes: the most that the peer may have left to decode.
const WINDOW: f64 = 64e6;
const ZEROS: Content = Content { ratio: 0.004, speed: 3e9 };
const SPARSE: Content = Content { ratio: 0.1, speed: 600e6 };
const NOISE: Content = Content { ratio: 1.0, speed: 1500e6 };

/// Returns the time in seconds for sending the bytes uncompressed.
fn plain(bytes: usize, rate: f64) -> f64 {
    bytes as f64 / rate
}

#[test]
fn nothing_is_compressed_on_a_fast_link() {
    for rate in [500e6, 1.2e9, 5e9] {
        let mut world = World::new(rate, 2e6);
        for _ in 0..10 {
            world.tensor(64 * MEBIBYTE, ZEROS);
        }
        assert_eq!((world.encoded, world.compressing), (0, 0.0), "{rate}");
        assert!(world.compression.is_idle());
    }
}

#[test]
fn compressible_data_arrives_sooner_over_a_slow_link() {
    for (rate, share) in [(1e6, 0.2), (12.5e6, 0.25), (125e6, 0.45)] {
        let mut world = World::new(rate, 2e6);
        world.tensor(64 * MEBIBYTE, SPARSE);
        let took = world.drain();
        assert!(took < share * plain(64 * MEBIBYTE, rate), "{took} s at {rate}");
    }
}

#[test]
fn incompressible_data_costs_almost_nothing() {
    for rate in [1e6, 12.5e6, 125e6, 390e6] {
        let mut world = World::new(rate, 2e6);
        for _ in 0..8 {
            world.tensor(64 * MEBIBYTE, NOISE);
        }
        let took = world.drain();
        assert_eq!(world.encoded, 0);
        assert!(world.compressing < 0.005 * took, "{} of {took} s at {rate}", world.compressing);
        assert!(took < 1.01 * plain(512 * MEBIBYTE, rate));
    }
}

#[test]
fn the_rate_of_a_link_is_measured_despite_large_buffers() {
    // The buffers are those of two TCP connections of Linux in sequence, which absorb most of a tensor.
    let digits = Content { ratio: 0.25, speed: 700e6 };
    for rate in [12.5e6, 125e6, 250e6] {
        let mut world = World::new(rate, 13e6);
        for _ in 0..3 {
            world.tensor(16 * MEBIBYTE, NOISE);
            world.drain();
        }
        let estimated = world.compression.link.rate().unwrap();
        assert!((0.8..2.0).contains(&(estimated / rate)), "{estimated} for {rate}");
        world.tensor(16 * MEBIBYTE, digits);
        assert_eq!(world.encoded, 16);
    }
}

#[test]
fn a_peer_that_decodes_slowly_gets_parts_as_they_are() {
    for (rate, decoding) in [(300e6, 20e6), (100e6, 20e6), (390e6, 100e6)] {
        let mut world = World::new(rate, 2e6);
        world.decoding = decoding;
        world.tensor(1024 * MEBIBYTE, ZEROS);
        let took = world.drain();
        assert!(
            took < 1.5 * plain(1024 * MEBIBYTE, rate),
            "{took} s at {rate}, decoded at {decoding}"
        );
        assert!(world.encoded <= 48, "{} parts at {rate}", world.encoded);
    }
}

#[test]
fn a_peer_that_decodes_faster_than_before_gets_parts_encoded_again() {
    let mut world = World::new(50e6, 2e6);
    world.decoding = 20e6;
    world.tensor(512 * MEBIBYTE, ZEROS);
    world.decoding = 1e9;
    world.tensor(512 * MEBIBYTE, ZEROS);
    let before = world.encoded;
    world.tensor(512 * MEBIBYTE, ZEROS);
    assert!(world.encoded - before > 500, "{}", world.encoded - before);
}

#[test]
fn many_small_tensors_that_do_not_compress_are_seldom_looked_at() {
    let mut world = World::new(125e6, 2e6);
    for _ in 0..2000 {
        world.tensor(100 << 10, NOISE);
    }
    world.tensor(16 * MEBIBYTE, NOISE);
    let before = world.compressing;
    for _ in 0..2000 {
        world.tensor(100 << 10, NOISE);
    }
    assert!(world.compressing - before < 50.0 * (100 << 10) as f64 / 8.0 / NOISE.speed);
}

#[test]
fn the_rate_of_a_slow_link_is_remembered_over_pauses() {
    let mut world = World::new(12.5e6, 2e6);
    world.tensor(16 * MEBIBYTE, SPARSE);
    for _ in 0..100 {
        world.drain();
        world.passes(0.5);
        let before = world.encoded;
        world.tensor(MEBIBYTE, SPARSE);
        assert_eq!(world.encoded, before + 1);
    }
}

#[test]
fn compression_starts_when_a_link_becomes_slow_and_stops_when_it_becomes_fast() {
    let content = Content { ratio: 0.4, speed: 400e6 };
    let mut world = World::new(1e9, 2e6);
    world.tensor(256 * MEBIBYTE, content);
    assert_eq!(world.encoded, 0);
    world.rate = 12.5e6;
    world.tensor(32 * MEBIBYTE, content);
    assert!(world.encoded > 16, "{}", world.encoded);
    world.rate = 2e9;
    // It takes seconds of virtual time until the rate is measured afresh.
    world.tensor(3000 * MEBIBYTE, content);
    let before = world.encoded;
    world.tensor(256 * MEBIBYTE, content);
    assert_eq!(world.encoded, before);
    assert!(world.changes < 6, "{}", world.changes);
}

#[test]
fn mixed_parts_of_a_tensor_are_not_sampled_repeatedly() {
    // The rule sees that the first part of each eight compresses, and then that the others do not.
    let mut world = World::new(125e6, 2e6);
    world.tensor(32 * MEBIBYTE, NOISE);
    let began = (world.now, world.compressing);
    for place in 0..1000 {
        let content = if place % 8 == 0 { SPARSE } else { NOISE };
        let written = world.try_part(MEBIBYTE, false, content);
        world.write(written, MEBIBYTE);
    }
    assert!(world.compressing - began.1 < 0.02 * (world.now - began.0));
}

#[test]
fn nothing_is_compressed_if_the_peer_or_the_mode_excludes_it() {
    let all = super::super::encodings();
    let lz4 = [Encoding::Lz4.into()];
    for (mode, taken, tries) in [
        (Mode::Always, &all[..], true),
        (Mode::Always, &lz4, true),
        (Mode::Always, &[], false),
        (Mode::Always, &[Encoding::ShuffledLz4.into()], false),
        (Mode::Never, &all, false),
    ] {
        let mut compression = Compression::new(mode, taken);
        assert_eq!(compression.trial(1000, 4, true).is_some(), tries, "{mode:?} {taken:?}");
    }
    let mut compression = Compression::new(Mode::Always, &lz4);
    // Numbers that compress best when shuffled.
    let numbers: Vec<u8> = (0..40_000_u32)
        .flat_map(|place| (place.wrapping_mul(2_654_435_761) >> 20).to_le_bytes())
        .collect();
    let trial = compression.trial(numbers.len(), 4, true).unwrap();
    let tried = trial.run(&mut Encoder::default(), &numbers);
    assert!(tried.encoded.is_none_or(|(part, _)| part.encoding() == Encoding::Lz4));
    let mut compression = Compression::new(Mode::Always, &all);
    let trial = compression.trial(numbers.len(), 4, true).unwrap();
    let (part, _) = trial.run(&mut Encoder::default(), &numbers).encoded.unwrap();
    assert_eq!(part.encoding(), Encoding::ShuffledLz4);
    // Repeated runs of noise, which compress best when not shuffled.
    let runs: Vec<u8> = numbers[..1000]
        .iter()
        .map(|byte| byte.wrapping_mul(31))
        .collect::<Vec<_>>()
        .repeat(40);
    let trial = compression.trial(runs.len(), 2, true).unwrap();
    let (part, _) = trial.run(&mut Encoder::default(), &runs).encoded.unwrap();
    assert_eq!(part.bytes(1), Ok(runs.len()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compression_never_takes_much_longer_than_raw_transfer(
        rate in 5.5_f64..9.7,
        ratio in 0.0_f64..1.05,
        speed in 7.5_f64..9.7,
        room in 4.0_f64..7.1,
        sizes in prop::collection::vec(1_usize..(40 << 20), 1..12),
    ) {
        let (rate, speed, room) = (10_f64.powf(rate), 10_f64.powf(speed), 10_f64.powf(room));
        let mut world = World::new(rate, room);
        for size in &sizes {
            world.tensor(*size, Content { ratio, speed });
            let now = world.now;
            world.passes(0.01);
            prop_assert!(world.now > now);
        }
        let took = world.drain();
        let total: usize = sizes.iter().sum();
        let least = plain(total, rate.min(MEMORY)) + 0.01 * sizes.len() as f64;
        // For each tensor, at most one sample and one part that compressed worse than its sample.
        let trials = sizes.len() as f64 * PART_BYTES as f64 * (1.0 + 1.0 / 8.0) / speed;
        prop_assert!(took <= 1.05 * least + trials + plain(total, MEMORY), "{took} s, {least} s as it is");
        // Where there is much to gain, most of the parts are encoded once the rate is known.
        let gains = rate / speed + ratio;
        if gains < 0.5 && rate < 0.9 * FASTEST_LINK && total > 64 << 20 {
            let raw = world.raw - world.measuring;
            prop_assert!(world.encoded > raw, "{} encoded, {raw} raw", world.encoded);
        }
    }
}
