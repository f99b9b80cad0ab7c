//! Element types of buffers.

use std::fmt;

/// Defines the types, each with its number in the header, its name in XLA's notation and the size of an element in host memory in bytes.
macro_rules! element_types {
    ($($element:ident $number:literal $name:literal $bytes:literal)*) => {
        /// Element type of a buffer: a value of `PJRT_Buffer_Type` that programs can use.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        pub enum ElementType {
            $($element = $number,)*
        }

        const ALL: &[(ElementType, &str, usize)] = &[$((ElementType::$element, $name, $bytes)),*];
    };
}

// In host memory, an element narrower than a byte occupies a whole byte.
element_types! {
    Pred 1 "pred" 1
    S8 2 "s8" 1
    S16 3 "s16" 2
    S32 4 "s32" 4
    S64 5 "s64" 8
    U8 6 "u8" 1
    U16 7 "u16" 2
    U32 8 "u32" 4
    U64 9 "u64" 8
    F16 10 "f16" 2
    F32 11 "f32" 4
    F64 12 "f64" 8
    Bf16 13 "bf16" 2
    C64 14 "c64" 8
    C128 15 "c128" 16
    F8E5M2 16 "f8e5m2" 1
    F8E4M3Fn 17 "f8e4m3fn" 1
    F8E4M3B11Fnuz 18 "f8e4m3b11fnuz" 1
    F8E5M2Fnuz 19 "f8e5m2fnuz" 1
    F8E4M3Fnuz 20 "f8e4m3fnuz" 1
    S4 21 "s4" 1
    U4 22 "u4" 1
    Token 23 "token" 0
    S2 24 "s2" 1
    U2 25 "u2" 1
    F8E4M3 26 "f8e4m3" 1
    F8E3M4 27 "f8e3m4" 1
    F8E8M0Fnu 28 "f8e8m0fnu" 1
    F4E2M1Fn 29 "f4e2m1fn" 1
}

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
    fn numbers_of_element_types_are_consecutive() {
        for (place, (element_type, name, _)) in ALL.iter().enumerate() {
            assert_eq!(*element_type as usize, place + 1, "{name}");
            assert_eq!(ElementType::of(*element_type as i32), Some(*element_type));
        }
        assert_eq!((ElementType::of(0), ElementType::of(30), ElementType::of(-1)), (None, None, None));
    }
}
