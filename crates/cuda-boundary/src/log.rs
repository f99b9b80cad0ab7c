//! Lines on stderr, for what a result code cannot say.

use std::collections::HashSet;
use std::io::Write;

use parking_lot::Mutex;

/// Writes a line after `sahasra: `.
pub fn line(text: &str) {
    // The program may have closed its stderr, which is no reason to fail.
    let _ = writeln!(std::io::stderr(), "sahasra: {text}");
}

/// Writes a line unless the same line was written before.
pub fn once(text: String) {
    static WRITTEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let is_new = WRITTEN.lock().get_or_insert_default().insert(text.clone());
    if is_new {
        line(&text);
    }
}
