//! Texts that objects, messages and command lines share.

use sahasra_names::{Bytes, is_dns_label, is_dns_subdomain};

#[test]
fn amounts_of_memory_are_short_and_rounded_down() {
    let amounts = [0, 1023, 3 << 9, 512 << 20, (9 << 30) - 1, 8 << 30, 5 << 40];
    let shown = amounts.map(|amount| Bytes(amount).to_string());
    assert_eq!(shown, ["0", "1023", "1.5Ki", "512Mi", "8.9Gi", "8Gi", "5Ti"]);
}

#[test]
fn names_are_those_of_rfc_1123() {
    let longest = "y".repeat(63);
    for right in ["a", "0-a", longest.as_str()] {
        assert!(is_dns_label(right) && is_dns_subdomain(right), "{right}");
    }
    assert!(is_dns_subdomain("a.b-c.0") && !is_dns_label("a.b"));
    for wrong in ["", "-a", "a-", "A", "a_b", "..", "a..b", "a%2fb", "a/b", "ä"] {
        assert!(!is_dns_label(wrong) && !is_dns_subdomain(wrong), "{wrong}");
    }
    assert!(!is_dns_label(&"y".repeat(64)) && !is_dns_subdomain(&"y".repeat(254)));
}
