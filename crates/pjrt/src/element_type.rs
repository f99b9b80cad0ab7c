//! Element types of buffers.

use std::fmt;

/// Element type of a buffer: a value of `PJRT_Buffer_Type` that programs can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ElementType {
    Pred = 1,
    S8 = 2,
    S16 = 3,
    S32 = 4,
    S64 = 5,
    U8 = 6,
    U16 = 7,
    U32 = 8,
    U64 = 9,
    F16 = 10,
    F32 = 11,
    F64 = 12,
    Bf16 = 13,
    C64 = 14,
    C128 = 15,
    F8E5M2 = 16,
    F8E4M3Fn = 17,
    F8E4M3B11Fnuz = 18,
    F8E5M2Fnuz = 19,
    F8E4M3Fnuz = 20,
    S4 = 21,
    U4 = 22,
    Token = 23,
    S2 = 24,
    U2 = 25,
    F8E4M3 = 26,
    F8E3M4 = 27,
    F8E8M0Fnu = 28,
    F4E2M1Fn = 29,
}

const ALL: [(ElementType, &str, usize); 29] = {
    use ElementType::*;
    [
        (Pred, "pred", 1),
        (S8, "s8", 1),
        (S16, "s16", 2),
        (S32, "s32", 4),
        (S64, "s64", 8),
        (U8, "u8", 1),
        (U16, "u16", 2),
        (U32, "u32", 4),
        (U64, "u64", 8),
        (F16, "f16", 2),
        (F32, "f32", 4),
        (F64, "f64", 8),
        (Bf16, "bf16", 2),
        (C64, "c64", 8),
        (C128, "c128", 16),
        (F8E5M2, "f8e5m2", 1),
        (F8E4M3Fn, "f8e4m3fn", 1),
        (F8E4M3B11Fnuz, "f8e4m3b11fnuz", 1),
        (F8E5M2Fnuz, "f8e5m2fnuz", 1),
        (F8E4M3Fnuz, "f8e4m3fnuz", 1),
        // In host memory, an element narrower than a byte occupies a whole byte.
        (S4, "s4", 1),
        (U4, "u4", 1),
        (Token, "token", 0),
        (S2, "s2", 1),
        (U2, "u2", 1),
        (F8E4M3, "f8e4m3", 1),
        (F8E3M4, "f8e3m4", 1),
        (F8E8M0Fnu, "f8e8m0fnu", 1),
        (F4E2M1Fn, "f4e2m1fn", 1),
    ]
};

impl ElementType {
    /// Returns the type with this number in the header, or `None` if this crate does not know it.
    pub fn of(number: i32) -> Option<Self> {
        let (found, _, _) = ALL.get(usize::try_from(number).ok()?.checked_sub(1)?)?;
        Some(*found)
    }

    fn entry(self) -> &'static (Self, &'static str, usize) {
        &ALL[self as usize - 1]
    }

    /// Returns the name of the type in XLA's notation.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Returns the size of one element in host memory in bytes.
    pub fn bytes(self) -> usize {
        self.entry().2
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_table() {
        for (place, (element_type, name, _)) in ALL.iter().enumerate() {
            assert_eq!(*element_type as usize, place + 1, "{name}");
            assert_eq!(ElementType::of(*element_type as i32), Some(*element_type));
        }
        assert_eq!((ElementType::of(0), ElementType::of(30), ElementType::of(-1)), (None, None, None));
    }
}
