//! `.version` and `.target`: texts that no assembler accepts are rejected at the directive.

use sahasra_ptx::{LoadErrorKind, Module};

fn load(version: &str, target: &str) -> Result<(), String> {
    let text = format!(".version {version}\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}\n");
    match Module::load(&text) {
        Ok(_) => Ok(()),
        Err(error) => {
            assert!(matches!(error.kind, LoadErrorKind::Invalid(_)), "{error}");
            Err(format!("{}: {}", error.line, error.reason()))
        }
    }
}

#[test]
fn unknown_and_too_new_targets_are_rejected() {
    for (version, target) in [
        ("2.0", "sm_20, texmode_independent"),
        ("7.0", "sm_80, debug"),
        ("8.0", "sm_90a"),
        ("9.5", "sm_107f"),
        ("7.0", "compute_80"),
        // The next version may have architectures that this program does not know.
        ("10.0", "sm_140"),
    ] {
        assert_eq!(load(version, target), Ok(()), "{version} {target}");
    }
    for (version, target, reason) in [
        ("8.0", "foo", "2: invalid: .target foo is no architecture"),
        ("9.0", "sm_999", "2: invalid: .target sm_999 is no architecture"),
        ("7.0", "sm_100", "2: invalid: .target sm_100 needs .version 8.6 or newer, not 7.0"),
        ("8.0", "sm_80, sm_90", "2: invalid: .target has no option sm_90"),
        ("7.9", "sm_80", "1: invalid: .version 7.9 does not exist"),
    ] {
        let found = load(version, target).expect_err(target);
        assert!(found.starts_with(reason), "{found}");
    }
    let missing = Module::load(".version 8.0\n.address_size 64\n.entry k() { ret; }").expect_err("no target");
    assert!(missing.to_string().contains(".target"), "{missing}");
    let reversed = Module::load(".target sm_80\n.version 8.0\n.entry k() { ret; }").expect_err("the target precedes the version");
    assert_eq!(reversed.line, 1, "{reversed}");
}
