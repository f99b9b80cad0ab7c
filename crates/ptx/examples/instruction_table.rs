//! Writes the table of instructions to `docs/ptx.md`, between its two marks. Part of `make generate`.

use std::error::Error;
use std::path::PathBuf;

const BEGIN: &str = "<!-- generated: instruction table -->\n";
const END: &str = "<!-- end of the instruction table -->";

fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/ptx.md");
    let page = std::fs::read_to_string(&path)?;
    let (before, rest) = page.split_once(BEGIN).ok_or("docs/ptx.md has no beginning of the table")?;
    let (_, after) = rest.split_once(END).ok_or("docs/ptx.md has no end of the table")?;
    let written = format!("{before}{BEGIN}{}\n{END}{after}", sahasra_ptx_syntax::instructions::table());
    if written != page {
        std::fs::write(&path, written)?;
    }
    Ok(())
}
