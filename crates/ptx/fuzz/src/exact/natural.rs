//! Natural numbers without an upper bound. Most have fewer than 128 bits in practice; only larger ones are allocated.

use std::cmp::Ordering;

use num_bigint::BigUint;

/// Natural number, zero included.
#[derive(Clone, Debug)]
pub enum Natural {
    /// Number of up to 128 bits.
    Small(u128),
    /// Number of any size.
    Large(BigUint),
}

impl From<u64> for Natural {
    fn from(value: u64) -> Self {
        Self::Small(value.into())
    }
}

impl From<u128> for Natural {
    fn from(value: u128) -> Self {
        Self::Small(value)
    }
}

impl Natural {
    pub const ZERO: Self = Self::Small(0);

    fn large(&self) -> BigUint {
        match self {
            Self::Small(value) => BigUint::from(*value),
            Self::Large(value) => value.clone(),
        }
    }

    /// Applies `small` if operands and result fit in 128 bits, else `large`.
    fn by(&self, other: &Self, small: fn(u128, u128) -> Option<u128>, large: fn(BigUint, BigUint) -> BigUint) -> Self {
        if let (Self::Small(left), Self::Small(right)) = (self, other)
            && let Some(result) = small(*left, *right)
        {
            return Self::Small(result);
        }
        Self::Large(large(self.large(), other.large()))
    }

    pub fn is_zero(&self) -> bool {
        self.bits() == 0
    }

    /// Returns the number of bits up to the highest set bit.
    pub fn bits(&self) -> u64 {
        match self {
            Self::Small(value) => u64::from(128 - value.leading_zeros()),
            Self::Large(value) => value.bits(),
        }
    }

    pub fn is_odd(&self) -> bool {
        match self {
            Self::Small(value) => value & 1 == 1,
            Self::Large(value) => value.bit(0),
        }
    }

    pub fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Small(left), Self::Small(right)) => left.cmp(right),
            _ => self.large().cmp(&other.large()),
        }
    }

    pub fn add(&self, other: &Self) -> Self {
        self.by(other, u128::checked_add, |left, right| left + right)
    }

    /// Returns the difference; `other` must not be larger.
    pub fn subtract(&self, other: &Self) -> Self {
        self.by(other, u128::checked_sub, |left, right| left - right)
    }

    pub fn multiply(&self, other: &Self) -> Self {
        self.by(other, u128::checked_mul, |left, right| left * right)
    }

    /// Returns the quotient, rounded down; `other` must not be zero.
    pub fn divide(&self, other: &Self) -> Self {
        self.by(other, u128::checked_div, |left, right| left / right)
    }

    /// Returns the square root, rounded down.
    pub fn square_root(&self) -> Self {
        match self {
            Self::Small(value) => Self::Small(value.isqrt()),
            Self::Large(value) => Self::Large(value.sqrt()),
        }
    }

    /// Multiplies by 2 to the power of `places`.
    pub fn shift_up(&self, places: u64) -> Self {
        match self {
            Self::Small(value) if places < u64::from(value.leading_zeros()) => Self::Small(value << places),
            Self::Small(0) => Self::ZERO,
            _ => Self::Large(self.large() << places),
        }
    }

    /// Divides by 2 to the power of `places`, rounded down.
    pub fn shift_down(&self, places: u64) -> Self {
        match self {
            Self::Small(_) if places >= 128 => Self::ZERO,
            Self::Small(value) => Self::Small(value >> places),
            Self::Large(value) => Self::Large(value >> places),
        }
    }

    /// Returns the number as 128 bits if it fits.
    pub fn to_u128(&self) -> Option<u128> {
        match self {
            Self::Small(value) => Some(*value),
            Self::Large(value) => u128::try_from(value).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_numbers_give_the_same() {
        let mut random = fastrand::Rng::with_seed(6);
        let mut number = || random.u128(..) >> random.u32(1..128);
        for _ in 0..20_000 {
            let (a, b) = (number(), number());
            let (low, high) = (a.min(b), a.max(b));
            let both = |value: u128| (Natural::Small(value), Natural::Large(value.into()));
            let ((small, large), (small_high, large_high)) = (both(low), both(high));
            let same = |left: Natural, right: Natural| assert_eq!(left.large(), right.large(), "{low} and {high}");
            same(small.add(&small_high), large.add(&large_high));
            same(small_high.subtract(&small), large_high.subtract(&large));
            same(small.multiply(&small_high), large.multiply(&large_high));
            if low > 0 {
                same(small_high.divide(&small), large_high.divide(&large));
            }
            same(small.square_root(), large.square_root());
            let places = u64::from((high % 200) as u8);
            same(small.shift_up(places), large.shift_up(places));
            same(small.shift_down(places), large.shift_down(places));
            assert_eq!(small.compare(&small_high), large.compare(&large_high));
            assert_eq!(small.bits(), large.bits());
            assert_eq!(small.is_odd(), large.is_odd());
            assert_eq!(large.to_u128(), Some(low));
        }
    }
}
