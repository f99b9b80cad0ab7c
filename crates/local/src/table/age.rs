//! Formatting of ages like in kubectl.

use jiff::Timestamp;

/// Time from `then` to `now`. `<invalid>` if `then` is two or more seconds in the future; a smaller difference between clocks is tolerated.
/// Has kubectl's units and precision, such as `2m5s`, `59m` or `2d1h`.
pub(crate) fn since(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - then.as_second();
    match seconds {
        i64::MIN..=-2 => return "<invalid>".to_owned(),
        -1..0 => return "0s".to_owned(),
        0..120 => return format!("{seconds}s"),
        _ => {}
    }
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{small_unit}")
        }
    };
    if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        two(days, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{days}d")
    } else if hours < 24 * 365 * 8 {
        two(years, "y", days % 365, "d")
    } else {
        format!("{years}y")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_units_that_kubectl_prints() {
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (3599, "59m"),
            (3600 * 3, "3h"),
            (3600 * 7 + 60, "7h1m"),
            (3600 * 47, "47h"),
            (3600 * 49, "2d1h"),
            (86400 * 100, "100d"),
            (86400 * 800, "2y70d"),
            (86400 * 365 * 9, "9y"),
        ] {
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(since(Timestamp::UNIX_EPOCH, now), expected);
        }
    }
}
