//! `printf` formats as CUDA's device runtime reads them: flags, width, precision, sizes hh to ll, and the conversions
//! d i u o x X c s p f F e E g G a A %.

use std::io::Write;
use std::sync::Arc;

use parking_lot::Mutex;

/// Collects the output of kernels over several launches. Clones share it.
#[derive(Clone, Debug)]
pub struct Output(Arc<Mutex<Collected>>);

#[derive(Debug)]
struct Collected {
    bytes: Vec<u8>,
    limit: usize,
    dropped: u64,
}

impl Default for Output {
    /// Returns an output with CUDA's default limit of 1 MiB.
    fn default() -> Self {
        Self::with_limit(1 << 20)
    }
}

impl Output {
    /// Returns an output that holds at most `limit` bytes until they are taken. Calls that do not fit are dropped as a whole. A first line,
    /// which is not subject to the limit, reports their number.
    pub fn with_limit(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Collected {
            bytes: Vec::new(),
            limit,
            dropped: 0,
        })))
    }

    pub(super) fn append(&self, text: &[u8]) {
        let mut collected = self.0.lock();
        if collected.bytes.len() + text.len() <= collected.limit {
            collected.bytes.extend_from_slice(text);
        } else {
            collected.dropped += 1;
        }
    }

    /// Removes and returns the text printed since the last call. The text of one `printf` is contiguous. Texts of different threads are in
    /// the order in which the threads ran.
    pub fn take(&self) -> Vec<u8> {
        let mut collected = self.0.lock();
        let bytes = std::mem::take(&mut collected.bytes);
        match std::mem::take(&mut collected.dropped) {
            0 => bytes,
            dropped => {
                let first = format!("printf calls dropped: {dropped} (limit: {} bytes)\n", collected.limit);
                [first.into_bytes(), bytes].concat()
            }
        }
    }
}

/// Source of the values that a format refers to.
pub(super) trait Arguments {
    type Error;
    /// Returns the next value, of this many bytes (4 or 8).
    fn value(&mut self, bytes: u64) -> Result<u64, Self::Error>;
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Self::Error>;
}

#[derive(Default)]
struct Conversion {
    left: bool,
    plus: bool,
    blank: bool,
    alternate: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    /// The argument of an integer has 8 bytes instead of 4.
    long: bool,
    /// Number of low bits of an integer that are formatted, if not all are.
    narrow: Option<u32>,
}

/// Maximum width of a field, so that a format cannot request gigabytes.
const FIELD_LIMIT: usize = 4096;

/// Returns the formatted text and the number of conversions.
pub(super) fn format<A: Arguments>(format: &[u8], arguments: &mut A) -> Result<(Vec<u8>, u32), A::Error> {
    let mut out = Vec::new();
    let mut conversions = 0;
    let mut at = 0;
    while let Some(byte) = format.get(at) {
        at += 1;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let begin = at - 1;
        let mut field = Conversion::default();
        while let Some(flag) = format.get(at) {
            match flag {
                b'-' => field.left = true,
                b'+' => field.plus = true,
                b' ' => field.blank = true,
                b'#' => field.alternate = true,
                b'0' => field.zeros = true,
                _ => break,
            }
            at += 1;
        }
        let mut number = |at: &mut usize| -> Result<i64, A::Error> {
            if format.get(*at) == Some(&b'*') {
                *at += 1;
                return Ok(i64::from(arguments.value(4)? as i32));
            }
            let mut value = 0i64;
            while let Some(digit) = format.get(*at).filter(|digit| digit.is_ascii_digit()) {
                value = (value * 10 + i64::from(digit - b'0')).min(FIELD_LIMIT as i64);
                *at += 1;
            }
            Ok(value)
        };
        let width = number(&mut at)?;
        field.left |= width < 0;
        field.width = (width.unsigned_abs() as usize).min(FIELD_LIMIT);
        if format.get(at) == Some(&b'.') {
            at += 1;
            let precision = number(&mut at)?;
            field.precision = usize::try_from(precision).ok().map(|precision| precision.min(FIELD_LIMIT));
        }
        while let Some(size) = format.get(at) {
            match size {
                b'h' => field.narrow = Some(if field.narrow == Some(16) { 8 } else { 16 }),
                b'l' | b'j' | b'z' | b't' => field.long = true,
                b'L' => {}
                _ => break,
            }
            at += 1;
        }
        let Some(kind) = format.get(at) else {
            out.extend_from_slice(&format[begin..]);
            break;
        };
        at += 1;
        match kind {
            b'%' => out.push(b'%'),
            b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'c' | b's' | b'p' | b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                convert(&mut out, &field, *kind, arguments)?;
                conversions += 1;
            }
            _ => out.extend_from_slice(&format[begin..at]),
        }
    }
    Ok((out, conversions))
}

/// Appends the next value as a conversion of this kind, which must be one that takes a value.
fn convert<A: Arguments>(out: &mut Vec<u8>, field: &Conversion, kind: u8, arguments: &mut A) -> Result<(), A::Error> {
    let integer_bytes = if field.long { 8 } else { 4 };
    let unused_bits = 64 - field.narrow.unwrap_or(64);
    match kind {
        b'd' | b'i' => {
            let raw = arguments.value(integer_bytes)?;
            let value = if field.long { raw as i64 } else { i64::from(raw as i32) };
            signed(out, field, value << unused_bits >> unused_bits);
        }
        b'u' | b'o' | b'x' | b'X' => {
            let raw = arguments.value(integer_bytes)?;
            unsigned(out, field, kind, raw & (u64::MAX >> unused_bits));
        }
        b'c' => {
            let value = arguments.value(4)? as u8;
            pad(out, field, b"", &[value], false);
        }
        b's' => {
            let address = arguments.value(8)?;
            let mut text = if address == 0 {
                b"(null)".to_vec()
            } else {
                arguments.text(address)?
            };
            text.truncate(field.precision.unwrap_or(usize::MAX));
            pad(out, field, b"", &text, false);
        }
        b'p' => {
            let value = arguments.value(8)?;
            let text = if value == 0 { "(nil)".to_owned() } else { format!("{value:#x}") };
            pad(out, field, b"", text.as_bytes(), false);
        }
        _ => real(out, field, kind, f64::from_bits(arguments.value(8)?)),
    }
    Ok(())
}

fn pad(out: &mut Vec<u8>, field: &Conversion, sign: &[u8], body: &[u8], zeros: bool) {
    let missing = field.width.saturating_sub(sign.len() + body.len());
    let fill = |out: &mut Vec<u8>, byte| out.extend(std::iter::repeat_n(byte, missing));
    if field.left {
        out.extend_from_slice(sign);
        out.extend_from_slice(body);
        fill(out, b' ');
    } else if zeros {
        out.extend_from_slice(sign);
        fill(out, b'0');
        out.extend_from_slice(body);
    } else {
        fill(out, b' ');
        out.extend_from_slice(sign);
        out.extend_from_slice(body);
    }
}

fn sign(field: &Conversion, negative: bool) -> &'static [u8] {
    match (negative, field.plus, field.blank) {
        (true, _, _) => b"-",
        (_, true, _) => b"+",
        (_, _, true) => b" ",
        _ => b"",
    }
}

/// Pads digits to the precision. Returns no digits if both the precision and the value are 0.
fn digits(field: &Conversion, text: String, zero: bool) -> String {
    match field.precision {
        Some(0) if zero => String::new(),
        Some(least) => format!("{text:0>least$}"),
        None => text,
    }
}

fn signed(out: &mut Vec<u8>, field: &Conversion, value: i64) {
    let body = digits(field, value.unsigned_abs().to_string(), value == 0);
    pad(
        out,
        field,
        sign(field, value < 0),
        body.as_bytes(),
        field.zeros && field.precision.is_none(),
    );
}

fn unsigned(out: &mut Vec<u8>, field: &Conversion, kind: u8, value: u64) {
    let text = match kind {
        b'o' => format!("{value:o}"),
        b'x' => format!("{value:x}"),
        b'X' => format!("{value:X}"),
        _ => value.to_string(),
    };
    let mut body = digits(field, text, value == 0);
    let prefix: &[u8] = match kind {
        b'x' if field.alternate && value != 0 => b"0x",
        b'X' if field.alternate && value != 0 => b"0X",
        _ => b"",
    };
    if kind == b'o' && field.alternate && !body.starts_with('0') {
        body.insert(0, '0');
    }
    pad(out, field, prefix, body.as_bytes(), field.zeros && field.precision.is_none());
}

fn real(out: &mut Vec<u8>, field: &Conversion, kind: u8, value: f64) {
    let magnitude = value.abs();
    let sign = sign(field, value.is_sign_negative());
    if !value.is_finite() {
        let text = if value.is_nan() { "nan" } else { "inf" };
        let text = if kind.is_ascii_uppercase() {
            text.to_uppercase()
        } else {
            text.to_owned()
        };
        return pad(out, field, sign, text.as_bytes(), false);
    }
    let mut text = match kind.to_ascii_lowercase() {
        b'e' => exponential(magnitude, field.precision.unwrap_or(6), field.alternate),
        b'g' => general(magnitude, field.precision.unwrap_or(6).max(1), field.alternate),
        b'a' => hexadecimal(magnitude, field.precision, field.alternate),
        _ => {
            let mut text = format!("{magnitude:.*}", field.precision.unwrap_or(6));
            if field.alternate && field.precision == Some(0) {
                text.push('.');
            }
            text
        }
    };
    if kind.is_ascii_uppercase() {
        text.make_ascii_uppercase();
    }
    // Zeros follow the prefix of hexadecimal digits.
    let (prefix, digits) = text.split_at(if matches!(kind, b'a' | b'A') { 2 } else { 0 });
    pad(out, field, &[sign, prefix.as_bytes()].concat(), digits.as_bytes(), field.zeros);
}

/// Formats a number like `1.5e+00`, with at least two digits of exponent.
fn exponential(value: f64, precision: usize, point: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    let point = if point && precision == 0 { "." } else { "" };
    format!("{mantissa}{point}e{sign}{digits:0>2}")
}

fn general(value: f64, precision: usize, keep_zeros: bool) -> String {
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trim = |text: String| {
        if keep_zeros || !text.contains('.') {
            text
        } else {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponential(value, precision - 1, keep_zeros);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        format!("{}e{exponent}", trim(mantissa.to_owned()))
    } else {
        let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
        let point = if keep_zeros && decimals == 0 { "." } else { "" };
        trim(format!("{value:.decimals$}{point}"))
    }
}

/// Formats a number like `0x1.8p+0`.
fn hexadecimal(value: f64, precision: Option<usize>, keep_point: bool) -> String {
    let bits = value.to_bits();
    let (mut exponent, mut fraction) = ((bits >> 52) as i64 - 1023, bits & ((1 << 52) - 1));
    let mut whole = u64::from(value != 0.0);
    if exponent == -1023 {
        exponent = if value == 0.0 { 0 } else { -1022 };
        whole = 0;
    }
    let digits = precision.unwrap_or(13).min(13);
    if digits < 13 {
        // Round to nearest even.
        let shift = 4 * (13 - digits);
        let all = whole << 52 | fraction;
        let (kept, rest) = (all >> shift, all & ((1 << shift) - 1));
        let half = 1u64 << (shift - 1);
        let kept = kept + u64::from(rest > half || (rest == half && kept & 1 == 1));
        whole = kept >> (52 - shift);
        fraction = (kept << shift) & ((1 << 52) - 1);
    }
    let mut text = Vec::new();
    let _ = write!(text, "{fraction:013x}");
    let mut text = String::from_utf8_lossy(&text).into_owned();
    text.truncate(digits);
    if precision.is_none() {
        text.truncate(text.trim_end_matches('0').len());
    }
    let extra = "0".repeat(precision.unwrap_or(0).saturating_sub(13));
    let point = if text.is_empty() && !keep_point { "" } else { "." };
    format!("0x{whole}{point}{text}{extra}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Values(Vec<u64>);

    impl Arguments for Values {
        type Error = ();
        fn value(&mut self, _: u64) -> Result<u64, ()> {
            Ok(self.0.remove(0))
        }
        fn text(&mut self, _: u64) -> Result<Vec<u8>, ()> {
            Ok(b"text".to_vec())
        }
    }

    fn printed(text: &str, values: &[u64]) -> String {
        let (bytes, _) = format(text.as_bytes(), &mut Values(values.to_vec())).expect("no error");
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn integers_are_printed_as_c_does() {
        assert_eq!(printed("%d|%5d|%-5d|%05d|%+d", &[7, 7, 7, 7, 7]), "7|    7|7    |00007|+7");
        assert_eq!(printed("%d %u", &[u64::MAX, 0xffff_ffff]), "-1 4294967295");
        assert_eq!(printed("%lld %hhd %x %#X %o", &[u64::MAX, 0x80, 255, 255, 8]), "-1 -128 ff 0XFF 10");
        assert_eq!(printed("%.3d|%5.3d|%.0d|%*d", &[5, 5, 0, 4, 9]), "005|  005||   9");
    }

    #[test]
    fn reals_are_printed_as_c_does() {
        let bits = f64::to_bits;
        assert_eq!(
            printed("%f %.2f %8.3f", &[bits(1.5), bits(2.675), bits(-3.0)]),
            "1.500000 2.67   -3.000"
        );
        assert_eq!(
            printed("%e %.0e %E", &[bits(12345.678), bits(2e10), bits(1e-7)]),
            "1.234568e+04 2e+10 1.000000E-07"
        );
        assert_eq!(
            printed("%g %g %g %g", &[bits(0.0001), bits(1e-5), bits(123456789.0), bits(100.0)]),
            "0.0001 1e-05 1.23457e+08 100"
        );
        assert_eq!(
            printed("%a %f %F", &[bits(1.5), bits(f64::INFINITY), bits(f64::NAN)]),
            "0x1.8p+0 inf NAN"
        );
        assert_eq!(
            printed(
                "%012a|%-9.0a|%#.0a|%#.0g|%#.3g|%#.1g",
                &[bits(1.5), bits(1.0), bits(1.0), bits(3.0), bits(250.0), bits(20.0)]
            ),
            "0x00001.8p+0|0x1p+0   |0x1.p+0|3.|250.|2.e+01"
        );
        assert_eq!(printed("%06.1f|%+.1f", &[bits(-2.25), bits(0.05)]), "-002.2|+0.1");
    }

    #[test]
    fn texts_characters_and_leftovers() {
        assert_eq!(printed("%s|%6s|%.2s|%c|%%", &[1, 1, 1, 65]), "text|  text|te|A|%");
        assert_eq!(printed("%p %q %", &[0x10]), "0x10 %q %");
    }

    #[test]
    fn output_has_a_limit() {
        let output = Output::with_limit(5);
        output.append(b"four");
        output.append(b"two");
        assert_eq!(output.take(), b"printf calls dropped: 1 (limit: 5 bytes)\nfour");
        output.append(b"two");
        assert_eq!(output.take(), b"two");
    }
}
