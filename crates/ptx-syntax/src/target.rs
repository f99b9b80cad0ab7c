//! Versions of the PTX ISA, and the `.target` architectures that each of them has (PTX ISA §11.1.2 `.target`, §13 release notes).

/// Newest version that this crate knows.
pub const NEWEST_VERSION: (u32, u32) = (9, 5);

/// Last minor version of each major version, from version 1 on.
const LAST_MINORS: [u32; 9] = [5, 3, 2, 3, 0, 5, 8, 8, NEWEST_VERSION.1];

/// Architectures, each with the first versions that have it: as it is, with the suffix `a`, and with the suffix `f`.
#[rustfmt::skip]
const ARCHITECTURES: [(u32, Version, Option<Version>, Option<Version>); 32] = [
    (10, (1, 0), None, None), (11, (1, 0), None, None), (12, (1, 2), None, None), (13, (1, 2), None, None),
    (20, (2, 0), None, None), (21, (2, 0), None, None),
    (30, (3, 0), None, None), (32, (4, 0), None, None), (35, (3, 1), None, None), (37, (4, 1), None, None),
    (50, (4, 0), None, None), (52, (4, 1), None, None), (53, (4, 2), None, None),
    (60, (5, 0), None, None), (61, (5, 0), None, None), (62, (5, 0), None, None),
    (70, (6, 0), None, None), (72, (6, 1), None, None), (75, (6, 3), None, None),
    (80, (7, 0), None, None), (86, (7, 1), None, None), (87, (7, 4), None, None), (88, (9, 0), None, None), (89, (7, 8), None, None),
    (90, (7, 8), Some((8, 0)), None),
    (100, (8, 6), Some((8, 6)), Some((8, 8))), (101, (8, 6), Some((8, 6)), Some((8, 8))), (103, (8, 8), Some((8, 8)), Some((8, 8))),
    (107, (9, 4), Some((9, 4)), Some((9, 4))), (110, (9, 0), Some((9, 0)), Some((9, 0))),
    (120, (8, 7), Some((8, 7)), Some((8, 8))), (121, (8, 8), Some((8, 8)), Some((8, 8))),
];

type Version = (u32, u32);

/// Options of `.target`, which follow the architecture.
const OPTIONS: [&str; 4] = ["texmode_unified", "texmode_independent", "debug", "map_f64_to_f32"];

/// Prefixes of an architecture. The vendor's assembler accepts both.
const PREFIXES: [&str; 2] = ["sm_", "compute_"];

/// Checks a `.version`.
///
/// # Errors
/// The version does not exist. Versions newer than [`NEWEST_VERSION`] pass.
pub fn check_version(version: Version) -> Result<(), String> {
    let (major, minor) = version;
    let last = (major as usize).checked_sub(1).and_then(|index| LAST_MINORS.get(index));
    match last {
        _ if version > NEWEST_VERSION => Ok(()),
        Some(last) if minor <= *last => Ok(()),
        Some(last) => Err(format!(
            ".version {major}.{minor} does not exist: the last one before {}.0 is {major}.{last}",
            major + 1
        )),
        None => Err(format!(".version {major}.{minor} does not exist")),
    }
}

/// Checks the architecture of a `.target` in a text of this version.
///
/// # Errors
/// The architecture does not exist, or the version does not have it yet. Unknown ones pass in versions newer than [`NEWEST_VERSION`].
pub fn check_architecture(version: Version, name: &str) -> Result<(), String> {
    let (major, minor) = version;
    let Some(first) = first_version(name) else {
        return if version > NEWEST_VERSION && PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            Ok(())
        } else {
            Err(format!(".target {name} is no architecture of the PTX ISA"))
        };
    };
    if version < first {
        return Err(format!(
            ".target {name} needs .version {}.{} or newer, not {major}.{minor}",
            first.0, first.1
        ));
    }
    Ok(())
}

/// Checks a word that follows the architecture of a `.target`.
///
/// # Errors
/// There is no such option.
pub fn check_option(name: &str) -> Result<(), String> {
    if OPTIONS.contains(&name) {
        Ok(())
    } else {
        Err(format!(".target has no option {name}"))
    }
}

/// Returns the first version that has an architecture, or `None` if none has.
fn first_version(name: &str) -> Option<Version> {
    let number = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let digits = number.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let (_, plain, accelerated, family) = ARCHITECTURES.iter().find(|(number, ..)| number.to_string() == digits)?;
    match &number[digits.len()..] {
        "" => Some(*plain),
        "a" => *accelerated,
        "f" => *family,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_need_the_version_that_introduced_them() {
        for (version, name) in [
            ((1, 0), "sm_10"),
            ((3, 1), "sm_35"),
            ((6, 0), "compute_70"),
            ((7, 0), "sm_80"),
            ((8, 0), "sm_90a"),
            ((8, 6), "sm_100a"),
            ((8, 8), "sm_100f"),
            ((9, 4), "sm_107"),
            ((10, 0), "sm_130"),
        ] {
            assert_eq!(check_architecture(version, name), Ok(()), "{version:?} {name}");
        }
        for (version, name, reason) in [
            ((7, 0), "sm_100", ".target sm_100 needs .version 8.6 or newer, not 7.0"),
            ((7, 8), "sm_90a", ".target sm_90a needs .version 8.0 or newer, not 7.8"),
            ((8, 6), "sm_100f", "needs .version 8.8"),
            ((9, 5), "sm_999", ".target sm_999 is no architecture"),
            ((8, 0), "foo", ".target foo is no architecture"),
            ((10, 0), "foo", ".target foo is no architecture"),
            ((8, 0), "sm_080", "no architecture"),
            ((8, 0), "sm_80a", "no architecture"),
            ((8, 0), "sm_", "no architecture"),
            ((8, 0), "debug", "no architecture"),
        ] {
            let found = check_architecture(version, name).expect_err(name);
            assert!(found.contains(reason), "{found}");
        }
    }

    #[test]
    fn versions_exist_up_to_the_last_minor_one() {
        for version in [(1, 0), (5, 0), (7, 8), (9, 5), (9, 6), (11, 0)] {
            assert_eq!(check_version(version), Ok(()), "{version:?}");
        }
        assert_eq!(
            check_version((7, 9)),
            Err(".version 7.9 does not exist: the last one before 8.0 is 7.8".to_owned())
        );
        assert!(check_version((5, 1)).is_err() && check_version((0, 9)).is_err());
        assert!(check_option("debug").is_ok() && check_option("sm_90").is_err());
    }
}
