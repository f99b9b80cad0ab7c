//! Command lines: their values, and the environment variables of their options.

use std::{
    ffi::{OsStr, OsString},
    time::Duration,
};

use clap::{
    Command, Error, Parser,
    error::{ContextKind, ContextValue},
};
use humantime::{DurationError, parse_duration};

use crate::tls::ServerName;

/// Maximum of a duration, in hours: a hundred years of 365 days, which every clock can count.
const MAX_HOURS: u64 = 876_000;

/// Parses the command line of a program, or ends the program with a message. An environment variable that is empty counts as unset. A
/// message about the value of a variable names the variable.
pub fn parse<T: Parser>(name: Option<&'static str>, arguments: impl IntoIterator<Item = OsString>) -> T {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = name.map_or_else(T::command, |name| T::command().bin_name(name));
    let mut command = without_variables(command, &|variable| {
        std::env::var_os(variable).is_some_and(|value| value.is_empty())
    });
    let matches = command.try_get_matches_from_mut(&arguments);
    match matches.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(parsed) => parsed,
        Err(error) => naming_variable(error, command, &arguments).exit(),
    }
}

fn without_variables(command: Command, is_left_out: &dyn Fn(&OsStr) -> bool) -> Command {
    let command = command.mut_args(|argument| match argument.get_env().is_some_and(is_left_out) {
        true => argument.env(None),
        false => argument,
    });
    command.mut_subcommands(|subcommand| without_variables(subcommand, is_left_out))
}

/// Adds the variable to an error about the value of an option that is not on the command line.
fn naming_variable(mut error: Error, mut command: Command, arguments: &[OsString]) -> Error {
    // Subcommands that the command line does not name are not built yet, and their options have no names.
    command.build();
    if let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg)
        && let Some(variable) = variable_of(&command, option)
        && let Some(flag) = option.split([' ', '=']).next()
        && !arguments
            .iter()
            .any(|argument| argument.to_string_lossy().split('=').next() == Some(flag))
    {
        let named = format!("{option} (environment variable {variable})");
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
    }
    error
}

fn variable_of(command: &Command, option: &str) -> Option<String> {
    let mut arguments = command.get_arguments();
    let found = arguments.find(|argument| argument.to_string() == option && argument.get_env().is_some());
    let variable = found.and_then(|argument| Some(argument.get_env()?.to_string_lossy().into_owned()));
    variable.or_else(|| command.get_subcommands().find_map(|subcommand| variable_of(subcommand, option)))
}

/// Parses a duration with units, such as `250ms`, `15s`, `2m` or `1h 30m`: more than zero, and at most a hundred years.
pub fn duration(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_secs(MAX_HOURS * 3600);
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("duration must not be zero".to_owned()),
        Ok(duration) if duration <= longest => Ok(duration),
        Ok(_) | Err(DurationError::NumberOverflow) => Err(format!("{text:?} is too large: the maximum is {MAX_HOURS}h")),
        Err(_) => Err(format!(
            "invalid duration {text:?}: expected numbers with ms, s, m or h, such as 15s"
        )),
    }
}

/// Parses the name for which a certificate must be valid: a DNS name or an IP address.
pub fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned()).map_err(|_| "expected a DNS name or an IP address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that every process has, as that of an option.
    fn command() -> Command {
        let level = clap::Arg::new("level")
            .long("level")
            .env("PATH")
            .global(true)
            .value_parser(crate::logging::filter);
        Command::new("program").arg(level).subcommand(Command::new("run"))
    }

    #[test]
    fn a_wrong_value_of_a_variable_is_reported_with_the_variable() {
        for arguments in [&["program"][..], &["program", "run"]] {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            let mut command = command();
            let error = command.try_get_matches_from_mut(&arguments).unwrap_err();
            let told = naming_variable(error, command, &arguments).to_string();
            assert!(told.contains("'--level <level> (environment variable PATH)'"), "{told}");
        }
        for given in [&["program", "--level", "loud"][..], &["program", "--level=loud"]] {
            let arguments: Vec<OsString> = given.iter().map(OsString::from).collect();
            let mut command = command();
            let error = command.try_get_matches_from_mut(&arguments).unwrap_err();
            let told = naming_variable(error, command, &arguments).to_string();
            assert!(told.contains("'--level <level>'") && !told.contains("PATH"), "{told}");
        }
    }

    #[test]
    fn a_variable_that_is_left_out_counts_as_unset() {
        let matches = without_variables(command(), &|variable| variable == "PATH").try_get_matches_from(["program"]);
        assert_eq!(matches.unwrap().get_one::<String>("level"), None);
    }

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
