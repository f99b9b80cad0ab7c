//! `cvt` (PTX ISA §9.7.9.21). Registers may be wider than the types in the instruction.

use super::convert_narrow::{Flags, is_half};
use super::{At, Lowering};
use crate::compile::ir::{RegisterId, Width};
use crate::lanes::convert as cv;
use crate::lanes::float as fl;
use crate::lanes::half::Half;
use crate::lanes::rounding::{Down, TowardZero, Up};
use crate::lanes::{LaneFunction, select, ternary, unary};
use sahasra_ptx_syntax::error::LoadError;
use sahasra_ptx_syntax::types::ScalarType as T;

/// Returns the lane function that truncates a value to a narrow type and extends it to its register again, according to its sign.
pub(super) fn narrow(scalar: T, width: Width) -> Option<LaneFunction> {
    Some(match (scalar.bytes(), scalar.is_signed(), width) {
        (1, false, Width::W16) => unary::<cv::Narrow<u8, u16>>(),
        (1, false, Width::W32) => unary::<cv::Narrow<u8, u32>>(),
        (1, false, Width::W64) => unary::<cv::Narrow<u8, u64>>(),
        (1, true, Width::W16) => unary::<cv::Narrow<i8, u16>>(),
        (1, true, Width::W32) => unary::<cv::Narrow<i8, u32>>(),
        (1, true, Width::W64) => unary::<cv::Narrow<i8, u64>>(),
        (2, false, Width::W32) => unary::<cv::Narrow<u16, u32>>(),
        (2, false, Width::W64) => unary::<cv::Narrow<u16, u64>>(),
        (2, true, Width::W32) => unary::<cv::Narrow<i16, u32>>(),
        (2, true, Width::W64) => unary::<cv::Narrow<i16, u64>>(),
        (4, false, Width::W64) => unary::<cv::Narrow<u32, u64>>(),
        (4, true, Width::W64) => unary::<cv::Narrow<i32, u64>>(),
        _ => return None,
    })
}

/// Returns the lane function that converts between register widths.
pub(super) fn resize(from: Width, signed: bool, to: Width) -> Option<LaneFunction> {
    Some(match (from, signed, to) {
        (Width::W16, false, Width::W32) => unary::<cv::Resize<u16, u32>>(),
        (Width::W16, true, Width::W32) => unary::<cv::Resize<i16, u32>>(),
        (Width::W16, false, Width::W64) => unary::<cv::Resize<u16, u64>>(),
        (Width::W16, true, Width::W64) => unary::<cv::Resize<i16, u64>>(),
        (Width::W32, false, Width::W64) => unary::<cv::Resize<u32, u64>>(),
        (Width::W32, true, Width::W64) => unary::<cv::Resize<i32, u64>>(),
        (Width::W32, _, Width::W16) => unary::<cv::Resize<u32, u16>>(),
        (Width::W64, _, Width::W16) => unary::<cv::Resize<u64, u16>>(),
        (Width::W64, _, Width::W32) => unary::<cv::Resize<u64, u32>>(),
        (Width::W16, _, Width::W16) => unary::<select::Copy1<u16>>(),
        (Width::W32, _, Width::W32) => unary::<select::Copy1<u32>>(),
        (Width::W64, _, Width::W64) => unary::<select::Copy1<u64>>(),
        _ => return None,
    })
}

macro_rules! to_integer {
    ($float:ty, $scalar:expr, $rounding:ty) => {
        match $scalar {
            T::U8 => Some(unary::<cv::ToInteger<$float, u8, u16, $rounding>>()),
            T::S8 => Some(unary::<cv::ToInteger<$float, i8, u16, $rounding>>()),
            T::U16 => Some(unary::<cv::ToInteger<$float, u16, u16, $rounding>>()),
            T::S16 => Some(unary::<cv::ToInteger<$float, i16, u16, $rounding>>()),
            T::U32 => Some(unary::<cv::ToInteger<$float, u32, u32, $rounding>>()),
            T::S32 => Some(unary::<cv::ToInteger<$float, i32, u32, $rounding>>()),
            T::U64 => Some(unary::<cv::ToInteger<$float, u64, u64, $rounding>>()),
            T::S64 => Some(unary::<cv::ToInteger<$float, i64, u64, $rounding>>()),
            _ => None,
        }
    };
}

macro_rules! from_integer {
    ($make:ident, $scalar:expr, $($with:tt)*) => {
        match $scalar {
            T::U16 => Some(unary::<cv::$make<u16, $($with)*>>()),
            T::S16 => Some(unary::<cv::$make<i16, $($with)*>>()),
            T::U32 => Some(unary::<cv::$make<u32, $($with)*>>()),
            T::S32 => Some(unary::<cv::$make<i32, $($with)*>>()),
            T::U64 => Some(unary::<cv::$make<u64, $($with)*>>()),
            T::S64 => Some(unary::<cv::$make<i64, $($with)*>>()),
            _ => None,
        }
    };
}

macro_rules! from_wide_integer {
    ($scalar:expr, $direction:ty) => {
        match $scalar {
            T::U64 => Some(unary::<cv::FromIntegerDirected64<u64, $direction>>()),
            T::S64 => Some(unary::<cv::FromIntegerDirected64<i64, $direction>>()),
            _ => None,
        }
    };
}

macro_rules! clamp {
    ($source:ty, $to:expr, $($name:ident: $target:ty as $register:ty),*) => {
        match $to {
            $(T::$name => Some(unary::<cv::Clamp<$source, $target, $register>>()),)*
            _ => None,
        }
    };
}

impl<'a> Lowering<'a> {
    /// `cvt.pack` (PTX ISA §9.7.9.22).
    fn packing_conversion(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        let function = match at.modifiers() {
            ["pack", "sat", to, "s32", ..] => match *to {
                "u16" => ternary::<cv::PackSaturated<16, false>>(),
                "s16" => ternary::<cv::PackSaturated<16, true>>(),
                "u8" => ternary::<cv::PackSaturated<8, false>>(),
                "s8" => ternary::<cv::PackSaturated<8, true>>(),
                "u4" => ternary::<cv::PackSaturated<4, false>>(),
                "s4" => ternary::<cv::PackSaturated<4, true>>(),
                "u2" => ternary::<cv::PackSaturated<2, false>>(),
                "s2" => ternary::<cv::PackSaturated<2, true>>(),
                _ => return Err(at.form()),
            },
            _ => return Err(at.form()),
        };
        let (target, a, b, c) = if at.modifiers().len() == 5 {
            let [target, a, b, c] = at.operands()?;
            (target, a, b, self.source(at, c, T::B32)?)
        } else {
            let [target, a, b] = at.operands()?;
            (target, a, b, self.zero(Width::W32))
        };
        let sources = [self.source(at, a, T::S32)?, self.source(at, b, T::S32)?, c];
        let target = self.target(at, target, Width::W32)?;
        self.lane(function, target, &sources);
        Ok(())
    }

    pub(super) fn conversion(&mut self, at: At<'a, '_>) -> Result<(), LoadError> {
        if at.modifiers().first() == Some(&"pack") {
            return self.packing_conversion(at);
        }
        let (flags, rest) = at.split(&[
            "rn",
            "rz",
            "rm",
            "rp",
            "rna",
            "rni",
            "rzi",
            "rmi",
            "rpi",
            "ftz",
            "sat",
            "relu",
            "satfinite",
        ]);
        let [to, from] = rest.as_slice() else {
            return Err(at.form());
        };
        let mut roundings = flags.iter().copied().filter(|word| word.starts_with('r') && *word != "relu");
        let words = Flags {
            rounding: roundings.next(),
            ftz: flags.contains(&"ftz"),
            sat: flags.contains(&"sat"),
            relu: flags.contains(&"relu"),
            finite: flags.contains(&"satfinite"),
        };
        if roundings.next().is_some() {
            return Err(at.form());
        }
        if let Some(done) = self.packed_conversion(at, to, from, &words) {
            return done;
        }
        let (Some(to), Some(from)) = (T::from_name(to), T::from_name(from)) else {
            return Err(at.form());
        };
        let bit = |scalar: T| matches!(scalar, T::B8 | T::B16 | T::B32 | T::B64 | T::B128 | T::Pred);
        let halves = is_half(to) || is_half(from);
        if bit(to) || bit(from) || (!halves && (words.relu || words.finite || words.rounding == Some("rna"))) {
            return Err(at.form());
        }
        let [target, source] = at.operands()?;
        let source = self.any_source(at, source, from)?;
        let target = self.any_target(at, target, Width::of_bytes(to.bytes()).ok_or_else(|| at.form())?)?;
        if self.width(source).bytes() < from.bytes() || self.width(target).bytes() < to.bytes() {
            return Err(at.invalid("a register is narrower than its type"));
        }
        let guard = self.guard.take();
        let source = self.read_as(at, source, from)?;
        let (mut source, words, behind) = self.separate(source, from, to, words);
        let Flags { rounding, ftz, sat, .. } = words;
        let width = Width::of_bytes(to.bytes()).ok_or_else(|| at.form())?;
        let function = match (from.is_float(), to.is_float()) {
            _ if halves => {
                let (function, value) = self.half_conversion(at, source, from, to, &words)?;
                source = value;
                function
            }
            (false, false) => {
                if rounding.is_some() || ftz {
                    return Err(at.form());
                }
                self.integer_function(at, from, to, sat)?
            }
            (true, false) => self.float_to_integer(at, from, to, rounding)?,
            (false, true) => self.integer_to_float(at, from, to, rounding)?,
            (true, true) => self.float_to_float(at, from, to, rounding, ftz, sat)?,
        };
        // The result of `function` is as wide as the type. A narrow integer is then truncated and extended, and a wider register filled.
        let mut value = source;
        let mut steps = vec![(function, width)];
        steps.extend(behind.into_iter().map(|function| (function, width)));
        if !from.is_float() && !to.is_float() && to.bytes() == 1 {
            steps.push((narrow(to, Width::W16).ok_or_else(|| at.form())?, Width::W16));
        }
        if self.width(target) != width {
            let signed = to.is_signed();
            steps.push((
                resize(width, signed, self.width(target)).ok_or_else(|| at.form())?,
                self.width(target),
            ));
        }
        let last = steps.len() - 1;
        for (index, (function, width)) in steps.into_iter().enumerate() {
            if index == last {
                self.guard = guard;
                self.lane(function, target, &[value]);
            } else {
                let next = self.new_register(width);
                self.lane(function, next, &[value]);
                value = next;
            }
        }
        Ok(())
    }

    /// Turns `.ftz` and `.sat` into separate steps where no function has them built in: the source is flushed before the conversion, the
    /// result flushed and clamped after it. Returns the source, the remaining modifiers, and the steps after the conversion.
    fn separate(&mut self, source: RegisterId, from: T, to: T, words: Flags<'a>) -> (RegisterId, Flags<'a>, Vec<LaneFunction>) {
        let Flags { rounding, ftz, sat, .. } = words;
        let integral = rounding.is_some_and(|word| word.ends_with('i'));
        let is_built_in = match (from, to) {
            (T::F32, T::F32) => !(integral && sat),
            (T::F32, T::F64) => !sat,
            (T::F64, T::F32) => rounding == Some("rn") && !(ftz && sat),
            (T::F16, T::F16) => !integral,
            (T::F16, T::F32) => true,
            // Integers have only `.sat`, which their conversion implements.
            _ => !from.is_float() && !to.is_float(),
        };
        if is_built_in || !(ftz || sat) {
            return (source, words, Vec::new());
        }
        // A subnormal source and a zero source give different results only if rounding leads away from zero.
        let flushes = ftz && !matches!(rounding, Some("rn" | "rz" | "rni" | "rzi") if to != T::F32 && to != T::F64);
        let mut flushed = source;
        if flushes && from == T::F32 {
            flushed = self.new_register(Width::W32);
            self.lane(unary::<fl::Flushing<select::Copy1<f32>>>(), flushed, &[source]);
        }
        let mut behind = Vec::new();
        // A converted integer is never subnormal.
        if flushes && to == T::F32 && from.is_float() {
            behind.push(unary::<fl::Flushing<select::Copy1<f32>>>());
        }
        match to {
            T::F16 if sat => behind.push(unary::<fl::Saturating<select::Copy1<Half>>>()),
            T::F32 if sat => behind.push(unary::<fl::Saturating<select::Copy1<f32>>>()),
            T::F64 if sat => behind.push(unary::<fl::Saturating<select::Copy1<f64>>>()),
            _ => {}
        }
        let words = Flags {
            ftz: false,
            sat: false,
            ..words
        };
        (flushed, words, behind)
    }

    /// Returns the value of type `from` in a register exactly as wide as the type (16 bits for bytes).
    fn read_as(&mut self, at: At<'a, '_>, source: RegisterId, from: T) -> Result<RegisterId, LoadError> {
        let width = Width::of_bytes(from.bytes()).ok_or_else(|| at.form())?;
        let mut value = source;
        if self.width(value) != width {
            let next = self.new_register(width);
            self.lane(resize(self.width(value), false, width).ok_or_else(|| at.form())?, next, &[value]);
            value = next;
        }
        if from.bytes() == 1 {
            let next = self.new_register(width);
            self.lane(narrow(from, width).ok_or_else(|| at.form())?, next, &[value]);
            value = next;
        }
        Ok(value)
    }

    fn integer_function(&mut self, at: At<'a, '_>, from: T, to: T, sat: bool) -> Result<LaneFunction, LoadError> {
        let widths = (Width::of_bytes(from.bytes()), Width::of_bytes(to.bytes()));
        let (Some(from_width), Some(to_width)) = widths else {
            return Err(at.form());
        };
        if !sat {
            return resize(from_width, from.is_signed(), to_width).ok_or_else(|| at.form());
        }
        // Bytes are already extended to 16 bits according to their sign, so they clamp as 16-bit values.
        let clamped = match from {
            T::U8 | T::U16 => clamp!(u16, to, U8: u8 as u16, S8: i8 as u16, S16: i16 as u16),
            T::S8 | T::S16 => {
                clamp!(i16, to, U8: u8 as u16, S8: i8 as u16, U16: u16 as u16, U32: u32 as u32, U64: u64 as u64)
            }
            T::U32 => {
                clamp!(u32, to, U8: u8 as u16, S8: i8 as u16, U16: u16 as u16, S16: i16 as u16, S32: i32 as u32)
            }
            T::S32 => {
                clamp!(i32, to, U8: u8 as u16, S8: i8 as u16, U16: u16 as u16, S16: i16 as u16, U32: u32 as u32, U64: u64 as u64)
            }
            T::U64 => {
                clamp!(u64, to, U8: u8 as u16, S8: i8 as u16, U16: u16 as u16, S16: i16 as u16, U32: u32 as u32, S32: i32 as u32, S64: i64 as u64)
            }
            T::S64 => {
                clamp!(i64, to, U8: u8 as u16, S8: i8 as u16, U16: u16 as u16, S16: i16 as u16, U32: u32 as u32, S32: i32 as u32, U64: u64 as u64)
            }
            _ => None,
        };
        // The remaining pairs of types cannot overflow.
        clamped
            .or_else(|| resize(from_width, from.is_signed(), to_width))
            .ok_or_else(|| at.form())
    }

    pub(super) fn float_to_integer(&mut self, at: At<'a, '_>, from: T, to: T, rounding: Option<&str>) -> Result<LaneFunction, LoadError> {
        let function = match (from, rounding) {
            (T::F32, Some("rni")) => to_integer!(f32, to, cv::NearestEven),
            (T::F32, Some("rzi")) => to_integer!(f32, to, TowardZero),
            (T::F32, Some("rmi")) => to_integer!(f32, to, Down),
            (T::F32, Some("rpi")) => to_integer!(f32, to, Up),
            (T::F64, Some("rni")) => to_integer!(f64, to, cv::NearestEven),
            (T::F64, Some("rzi")) => to_integer!(f64, to, TowardZero),
            (T::F64, Some("rmi")) => to_integer!(f64, to, Down),
            (T::F64, Some("rpi")) => to_integer!(f64, to, Up),
            _ => None,
        };
        function.ok_or_else(|| at.form())
    }

    fn integer_to_float(&mut self, at: At<'a, '_>, from: T, to: T, rounding: Option<&str>) -> Result<LaneFunction, LoadError> {
        let from = match from {
            T::U8 => T::U16,
            T::S8 => T::S16,
            other => other,
        };
        let function = match (to, rounding) {
            (T::F32, Some("rn")) => from_integer!(FromInteger, from, f32),
            (T::F32, Some("rz")) => from_integer!(FromIntegerDirected, from, TowardZero),
            (T::F32, Some("rm")) => from_integer!(FromIntegerDirected, from, Down),
            (T::F32, Some("rp")) => from_integer!(FromIntegerDirected, from, Up),
            (T::F64, Some("rn")) => from_integer!(FromInteger, from, f64),
            // The conversion is exact, whatever the rounding direction.
            (T::F64, Some(_)) if from.bytes() <= 4 => from_integer!(FromInteger, from, f64),
            (T::F64, Some("rz")) => from_wide_integer!(from, TowardZero),
            (T::F64, Some("rm")) => from_wide_integer!(from, Down),
            (T::F64, Some("rp")) => from_wide_integer!(from, Up),
            _ => None,
        };
        function.ok_or_else(|| at.form())
    }

    fn float_to_float(
        &mut self,
        at: At<'a, '_>,
        from: T,
        to: T,
        rounding: Option<&str>,
        ftz: bool,
        sat: bool,
    ) -> Result<LaneFunction, LoadError> {
        let function = match (from, to, rounding, ftz, sat) {
            (T::F32, T::F64, None, false, false) => unary::<cv::Widen>(),
            (T::F32, T::F64, None, true, false) => unary::<cv::FlushedConversion<cv::Widen>>(),
            (T::F64, T::F32, Some("rn"), false, false) => unary::<cv::NarrowFloat>(),
            (T::F64, T::F32, Some("rn"), true, false) => unary::<cv::FlushedConversion<cv::NarrowFloat>>(),
            (T::F64, T::F32, Some("rn"), false, true) => unary::<fl::Saturating<cv::NarrowFloat>>(),
            (T::F64, T::F32, Some("rz"), false, false) => unary::<cv::NarrowFloatDirected<TowardZero>>(),
            (T::F64, T::F32, Some("rm"), false, false) => unary::<cv::NarrowFloatDirected<Down>>(),
            (T::F64, T::F32, Some("rp"), false, false) => unary::<cv::NarrowFloatDirected<Up>>(),
            (T::F32, T::F32, None | Some("rn"), false, true) => unary::<fl::Saturating<select::Copy1<f32>>>(),
            (T::F32, T::F32, None | Some("rn"), true, true) => unary::<fl::Saturating<fl::Flushing<select::Copy1<f32>>>>(),
            (T::F32, T::F32, None | Some("rn"), true, false) => unary::<fl::Flushing<select::Copy1<f32>>>(),
            (T::F32, T::F32, None | Some("rn"), false, false) => unary::<select::Copy1<f32>>(),
            (T::F32, T::F32, Some("rni"), false, false) => unary::<cv::RoundToIntegral<f32, cv::NearestEven>>(),
            (T::F32, T::F32, Some("rzi"), false, false) => unary::<cv::RoundToIntegral<f32, TowardZero>>(),
            (T::F32, T::F32, Some("rmi"), false, false) => unary::<cv::RoundToIntegral<f32, Down>>(),
            (T::F32, T::F32, Some("rpi"), false, false) => unary::<cv::RoundToIntegral<f32, Up>>(),
            (T::F32, T::F32, Some("rni"), true, false) => unary::<fl::Flushing<cv::RoundToIntegral<f32, cv::NearestEven>>>(),
            (T::F32, T::F32, Some("rzi"), true, false) => unary::<fl::Flushing<cv::RoundToIntegral<f32, TowardZero>>>(),
            (T::F32, T::F32, Some("rmi"), true, false) => unary::<fl::Flushing<cv::RoundToIntegral<f32, Down>>>(),
            (T::F32, T::F32, Some("rpi"), true, false) => unary::<fl::Flushing<cv::RoundToIntegral<f32, Up>>>(),
            (T::F64, T::F64, None | Some("rn"), false, false) => unary::<select::Copy1<f64>>(),
            (T::F64, T::F64, Some("rni"), false, false) => unary::<cv::RoundToIntegral<f64, cv::NearestEven>>(),
            (T::F64, T::F64, Some("rzi"), false, false) => unary::<cv::RoundToIntegral<f64, TowardZero>>(),
            (T::F64, T::F64, Some("rmi"), false, false) => unary::<cv::RoundToIntegral<f64, Down>>(),
            (T::F64, T::F64, Some("rpi"), false, false) => unary::<cv::RoundToIntegral<f64, Up>>(),
            _ => return Err(at.form()),
        };
        Ok(function)
    }
}
