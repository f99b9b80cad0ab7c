//! Parsers of values on the command lines.

use std::time::Duration;

use humantime::{DurationError, parse_duration};

use crate::tls::ServerName;

/// Maximum of a duration, in hours: a hundred years of 365 days, which every clock can count.
const LONGEST_HOURS: u64 = 876_000;

/// Parses a duration such as `250ms`, `15s`, `2m` or `1h 30m`.
///
/// # Errors
/// A description of the problem when `text` is not a duration with a unit, is zero, or is more than a hundred years.
pub fn duration(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_secs(LONGEST_HOURS * 3600);
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("duration must not be zero".to_owned()),
        Ok(duration) if duration <= longest => Ok(duration),
        Ok(_) | Err(DurationError::NumberOverflow) => Err(format!("{text:?} is too large: the maximum is {LONGEST_HOURS}h")),
        Err(_) => Err(format!(
            "invalid duration {text:?}: expected numbers with ms, s, m or h, such as 15s"
        )),
    }
}

/// Returns the visible options whose environment variable is not `SAHASRA_` and the name of the option, in upper case. `--kubeconfig` reads
/// `KUBECONFIG`, as all programs of Kubernetes do. For tests.
pub fn deviating_variables(command: &clap::Command) -> Vec<String> {
    let options = command.get_arguments().filter(|option| !option.is_hide_set());
    let deviates = |option: &&clap::Arg| {
        let name = option.get_long().unwrap_or_default();
        let expected = match name {
            "" | "help" | "version" => return false,
            "kubeconfig" => "KUBECONFIG".to_owned(),
            _ => format!("SAHASRA_{}", name.replace('-', "_").to_uppercase()),
        };
        option.get_env().is_none_or(|variable| *variable != *expected)
    };
    options.filter(deviates).map(|option| format!("--{}", option.get_id())).collect()
}

/// Parses the name for which a certificate must be valid.
///
/// # Errors
/// When `text` is neither a DNS name nor an IP address.
pub fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned()).map_err(|_| "expected a DNS name or an IP address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_a_unit_and_are_not_zero() {
        for (text, milliseconds) in [
            ("250ms", 250),
            ("15s", 15_000),
            ("0.5s", 500),
            ("2m", 120_000),
            ("2h", 7_200_000),
            ("1h 30m", 5_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "15", "s", "0s", "0", "-1s", "1 apple", "soon"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration("0s"), Err("duration must not be zero".to_owned()));
        for wrong in ["99999999999999999999h", "5124095576030431h", "876001h"] {
            let problem = duration(wrong).unwrap_err();
            assert!(problem.contains("too large: the maximum is 876000h"), "{problem}");
        }
        assert!(duration("876000h").is_ok());
    }
}
