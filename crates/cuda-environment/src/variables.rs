//! Values of environment variables. Each error names the variable, its value, and what is expected.

use std::time::Duration;

use humantime::{DurationError, parse_duration};
use sahasra_client::read_authorities;
use sahasra_error_chain::causes;

/// Longest time that a variable can name, in hours: a hundred years of 365 days, which every clock can count.
const MAX_HOURS: u64 = 876_000;
/// Units of memory that the spec of a `GpuSession` has, with the binary logarithms of their bytes.
const UNITS: [(&str, u32); 4] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)];

/// Value of a variable, unless it is unset or empty.
pub(crate) fn read(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

/// Bytes of the memory of a session: a whole number with a unit, as in the spec of a `GpuSession`.
pub(crate) fn session_bytes(variable: &str, text: &str) -> Result<u64, String> {
    let split = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let bytes = split.and_then(|(digits, shift)| whole(digits)?.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("{variable}={text:?} is not an amount of memory: expected a whole number with Ki, Mi, Gi or Ti, such as 8Gi")
    })
}

/// Bytes of the memory of a device in this process, which need no unit.
pub(crate) fn bytes(variable: &str, text: &str) -> Result<u64, String> {
    whole(text).map_or_else(|| session_bytes(variable, text), Ok)
}

/// A whole number of at least one, without a sign and without zeros before it.
fn whole(text: &str) -> Option<u64> {
    let is_number = text.starts_with(|first: char| first.is_ascii_digit() && first != '0');
    text.parse().ok().filter(|_| is_number)
}

/// A time with its unit, as options of the command line have it. Zero is one.
pub(crate) fn duration(variable: &str, text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(duration) if duration <= Duration::from_secs(MAX_HOURS * 3600) => Ok(duration),
        Ok(_) | Err(DurationError::NumberOverflow) => Err(format!("{variable}={text:?} is too large: the maximum is {MAX_HOURS}h")),
        Err(_) => Err(format!(
            "{variable}={text:?} is not a duration: expected numbers with ms, s, m or h, such as 30s or 5m"
        )),
    }
}

/// Value of a switch, `0` or `1`; the default if it is not set.
pub(crate) fn is_on(variable: &str, default: bool) -> Result<bool, String> {
    switch(variable, read(variable).as_deref(), default)
}

fn switch(variable: &str, value: Option<&str>, default: bool) -> Result<bool, String> {
    match value {
        None => Ok(default),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("{variable}={other:?}: expected 0 or 1; unset is {}", u8::from(default))),
    }
}

/// CA certificates in the file that a variable names.
pub(crate) fn certificates(variable: &str) -> Result<Option<String>, String> {
    let read = |path: String| {
        let read = read_authorities(path.as_ref());
        read.map_err(|error| {
            let cause = causes(&error);
            format!("{variable}={path:?}: {cause}: name a file with CA certificates in PEM format, or unset it")
        })
    };
    self::read(variable).map(read).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_memory_are_read() {
        for (text, expected) in [("8Gi", 8 << 30), ("64Ti", 64 << 40), ("512Ki", 512 << 10)] {
            assert_eq!(bytes("NAME", text), Ok(expected));
            assert_eq!(session_bytes("NAME", text), Ok(expected));
        }
        assert_eq!(bytes("NAME", "1024"), Ok(1024));
        assert!(session_bytes("NAME", "1024").is_err(), "a GpuSession needs a unit");
        for wrong in ["", "Gi", "8G", "0", "0Gi", "-1", "+1Gi", "1.5Gi", "99999999999Ti", "8Gi ", "much"] {
            for reason in [bytes("NAME", wrong).unwrap_err(), session_bytes("NAME", wrong).unwrap_err()] {
                assert!(reason.contains(&format!("NAME={wrong:?}")) && reason.contains("8Gi"), "{reason}");
            }
        }
    }

    #[test]
    fn times_have_units_and_an_end() {
        for (text, milliseconds) in [("0s", 0), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("1h 30m", 5_400_000)] {
            assert_eq!(duration("NAME", text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "300", "-1s", "soon", "5 apples"] {
            let reason = duration("NAME", wrong).unwrap_err();
            assert!(reason.contains(&format!("NAME={wrong:?}")) && reason.contains("30s"), "{reason}");
        }
        for long in ["876001h", "99999999999999999999h", "18446744073709551615s"] {
            let reason = duration("NAME", long).unwrap_err();
            assert!(reason.contains("NAME=") && reason.contains("876000h"), "{reason}");
        }
        let longest = duration("NAME", "876000h").unwrap();
        assert!(std::time::Instant::now().checked_add(longest * 2).is_some());
    }

    #[test]
    fn a_switch_is_0_or_1() {
        for default in [false, true] {
            assert_eq!(switch("NAME", None, default), Ok(default));
            assert_eq!(switch("NAME", Some("0"), default), Ok(false));
            assert_eq!(switch("NAME", Some("1"), default), Ok(true));
            for wrong in ["yes", "true", "off", "2", " 1"] {
                let reason = switch("NAME", Some(wrong), default).unwrap_err();
                assert!(reason.contains(&format!("NAME={wrong:?}: expected 0 or 1")), "{reason}");
            }
        }
    }
}
