//! Output: results for scripts on standard output, everything else on standard error.

use std::{
    fmt,
    io::{self, Write},
    sync::Once,
};

use serde_json::Value;

use crate::{args::Structure, exit::Exit};

/// Writes all of a result to stdout. A reader that closed the pipe has read enough; any other error is returned as [`Exit::Failed`], and
/// the first one is reported.
pub(crate) fn print(text: &str) -> Exit {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Exit::Success,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
        Err(error) => {
            static REPORTED: Once = Once::new();
            REPORTED.call_once(|| complain(&format!("failed to write to standard output: {error}")));
            Exit::Failed
        }
    }
}

pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub(crate) fn complain(text: &str) {
    say(&format!("sahasra: {text}"));
}

/// Writes a value to stdout as YAML or JSON, with the outcome of [`print`].
pub(crate) fn structured(structure: Structure, value: &Value) -> Exit {
    match structure {
        Structure::Yaml => print(&sahasra_crds::yaml::write(value)),
        Structure::Table | Structure::Json => print(&format!("{value:#}\n")),
    }
}

/// Table in kubectl's layout: columns as wide as their widest cell, separated by three spaces.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(width - cell.chars().count() + 3));
            }
            writeln!(formatter, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["NAME", "N"]);
        table.row(["longer", "1"].map(str::to_owned));
        assert_eq!(table.to_string(), "NAME     N\nlonger   1\n");
        // A cell may hold the text of an instruction, which has no limit.
        let long = "x".repeat(usize::from(u16::MAX) + 1);
        table.row([long.clone(), "1".to_owned()]);
        assert!(table.to_string().ends_with(&format!("\n{long}   1\n")));
    }
}
