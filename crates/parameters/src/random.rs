//! Seeded, reproducible random numbers: a function of the seed, the parameter's name and the index only.
//!
//! The numbers of a parameter are outputs of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA
//! 2014). The chunk's index is the position in the sequence, so the number of any chunk can be computed without the others:
//!
//! ```text
//! mix(z)     = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^ (z >> 31)
//! name       = FNV-1a (64 bit) of the parameter's name in UTF-8
//! key        = mix(mix(seed + 0x9e3779b97f4a7c15) ^ name)
//! bits       = mix(key + (index + 1) * 0x9e3779b97f4a7c15)
//! unit       = (bits >> 11) * 2^-53                                 in [0, 1)
//! pick(n)    = (bits * n) >> 64                                     in 0..n, 128-bit product
//!
//! choice                = choice[pick(length)]
//! uniform, whole types  = min + pick(max - min)
//! uniform, float types  = min + (max - min) * unit
//! logUniform            = exp(ln(min) + (ln(max) - ln(min)) * unit), rounded down for whole types
//! ```
//!
//! All arithmetic is modulo 2^64 or IEEE binary64. `exp` and `ln` are musl's (crate `libm`), so that every platform computes the same bits.
//! For `f32`, the bounds are first rounded to `f32`, and the result is rounded to nearest. A result that rounding raises to `max` becomes
//! the next lower number, and one below `min` becomes `min`.

use crate::{scalar::Scalar, spec::ScalarType};

/// 2^64 divided by the golden ratio, made odd: the increment of SplitMix64.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Sequence of random bits of one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    key: u64,
}

impl Stream {
    /// Creates the sequence for a seed and a parameter's name.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self {
            key: mix(mix(seed.wrapping_add(INCREMENT)) ^ name),
        }
    }

    pub(crate) fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(INCREMENT)))
    }

    /// Returns a number uniformly distributed in [0, 1), a multiple of 2^-53.
    pub(crate) fn unit(self, index: u64) -> f64 {
        const TWO_TO_MINUS_53: f64 = 1.0 / 9_007_199_254_740_992.0;
        (self.bits(index) >> 11) as f64 * TWO_TO_MINUS_53
    }

    /// Returns a whole number in `0..length`. The probabilities of two numbers differ by at most 2^-64.
    pub(crate) fn pick(self, index: u64, length: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(length)) >> 64) as u64
    }
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Rounds the value to the type and clamps it to [min, max).
pub(crate) fn within(type_: ScalarType, value: f64, min: f64, max: f64) -> Option<Scalar> {
    match type_ {
        ScalarType::F64 => Some(Scalar::F64(if value >= max { max.next_down() } else { value.max(min) })),
        ScalarType::F32 => {
            let (value, max) = (value as f32, max as f32);
            Some(Scalar::F32(if value >= max { max.next_down() } else { value.max(min as f32) }))
        }
        _ => Scalar::from_f64(type_, if value >= max { max - 1.0 } else { value.max(min).floor() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_published_sequence_of_splitmix64() {
        // Outputs of the reference implementation for the seed 1234567, a widely used test vector.
        let stream = Stream { key: 1_234_567 };
        assert_eq!(
            [0, 1, 2, 3, 4].map(|index| stream.bits(index)),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn names_and_seeds_give_unrelated_streams() {
        let of = |seed, name| Stream::new(seed, name).bits(0);
        let all = [of(0, "a"), of(0, "b"), of(1, "a"), of(1, "b")];
        for (at, one) in all.iter().enumerate() {
            for other in &all[at + 1..] {
                let differing = (one ^ other).count_ones();
                assert!((12..=52).contains(&differing), "{differing} bits of 64 differ");
            }
        }
    }

    #[test]
    fn rounding_never_reaches_the_excluded_bound() {
        let max = 1.0 + f64::from(f32::EPSILON);
        assert_eq!(within(ScalarType::F32, max - 1e-12, 1.0, max), Some(Scalar::F32(1.0)));
        assert_eq!(within(ScalarType::F64, 2.0, 1.0, 2.0), Some(Scalar::F64(2.0_f64.next_down())));
        assert_eq!(within(ScalarType::U8, 8.0, 1.0, 8.0), Some(Scalar::U8(7)));
    }
}
