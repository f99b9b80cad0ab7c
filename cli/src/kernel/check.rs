//! `sahasra kernel check`: reports which backends can run a PTX file, and the parameters of its kernels.

use std::{fmt::Write as _, path::Path};

use sahasra_names::Backend;
use sahasra_ptx::{EntryOutline, NEWEST_VERSION};
use serde_json::Value;

use crate::{
    args::{CheckArgs, Structure},
    exit::Exit,
    kernel::describe::{Description, cuda_version, devices},
    output::{self, Table},
};

pub(crate) fn run(arguments: &CheckArgs) -> Exit {
    let mut exit = Exit::Success;
    let mut described = Vec::new();
    for path in &arguments.files {
        match read(path) {
            Ok(description) => {
                exit = exit.max(verdict(&description, arguments.backend));
                described.push(description);
            }
            Err(reason) => {
                output::complain(&format!("{}: {reason}", path.display()));
                exit = Exit::Refused;
            }
        }
    }
    match arguments.output {
        Structure::Table => {
            for description in &described {
                exit = exit.max(output::print(&text(description)));
            }
        }
        Structure::Json | Structure::Yaml => {
            let mut values: Vec<Value> = described.iter().map(Description::json).collect();
            let value = if values.len() == 1 { values.remove(0) } else { Value::from(values) };
            if !described.is_empty() {
                exit = exit.max(output::structured(arguments.output, &value));
            }
        }
    }
    exit
}

fn read(path: &Path) -> Result<Description, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "invalid PTX: expected text, not a binary such as a cubin".to_owned())?;
    Description::of(&path.display().to_string(), &text).map_err(|error| error.to_string())
}

/// Whether the requested backend, or any, can run the kernel, as an exit code. What was not checked does not count as a failure.
fn verdict(description: &Description, backend: Option<Backend>) -> Exit {
    let cpu = description.error.is_none();
    let cuda = description.cuda_runs() != Some(false);
    let runs = match backend {
        None => cpu || cuda,
        Some(Backend::Cpu) => cpu,
        Some(Backend::Cuda) => cuda,
    };
    if runs { Exit::Success } else { Exit::Refused }
}

fn text(description: &Description) -> String {
    let mut text = format!(
        "{}: PTX {} for {}, {}-bit addresses\n\n",
        description.file,
        description.ptx_version(),
        description.target(),
        description.outline.address_size
    );
    let mut backends = Table::new(&["BACKEND", "RUNS IT", "WHY"]);
    let (runs, why) = match &description.error {
        None => ("yes", "every instruction is known".to_owned()),
        Some(error) if error.instruction.is_empty() => ("no", format!("line {}: {}", error.line, error.reason())),
        Some(error) => ("no", format!("line {}: `{}`: {}", error.line, error.instruction, error.reason())),
    };
    backends.row(["cpu".to_owned(), runs.to_owned(), why]);
    let mut why = devices(description.target());
    if description.outline.version > NEWEST_VERSION {
        let _ = write!(why, "; PTX {} is newer than this program knows", description.ptx_version());
    } else if let Some(version) = cuda_version(description.outline.version) {
        let _ = write!(why, ", a driver of CUDA {version} or newer");
    }
    let runs = match description.cuda_runs() {
        Some(true) => "yes",
        Some(false) => {
            why = "invalid PTX: see above".to_owned();
            "no"
        }
        None if description.error.is_none() => "not checked",
        None => {
            why = format!("unknown statement: see above; if it is valid PTX: {why}");
            "not checked"
        }
    };
    backends.row(["cuda".to_owned(), runs.to_owned(), why]);
    text.push_str(&backends.to_string());
    if description.outline.entries.is_empty() {
        text.push_str("\nno .entry: there is no kernel to launch\n");
    }
    for entry in &description.outline.entries {
        let _ = write!(text, "\n.entry {}\n", entry.name);
        let _ = writeln!(text, "  registers  {}", registers(entry));
        let dynamic = if entry.has_dynamic_shared { " and what a launch adds" } else { "" };
        let _ = writeln!(text, "  shared     {} bytes a block{dynamic}", entry.shared_bytes);
        let _ = writeln!(text, "  constant   {} bytes", entry.constant_bytes);
        let _ = writeln!(text, "  local      {} bytes a thread", entry.local_bytes);
        if let Some([x, y, z]) = entry.required_block {
            let _ = writeln!(text, "  block      [{x}, {y}, {z}] and no other");
        } else if let Some([x, y, z]) = entry.max_block {
            let _ = writeln!(text, "  block      at most {} threads", u64::from(x) * u64::from(y) * u64::from(z));
        }
        if entry.parameters.is_empty() {
            text.push_str("  takes no arguments\n");
            continue;
        }
        let mut parameters = Table::new(&["  ARG", "TYPE", "BYTES", "OFFSET", "NAME"]);
        for (place, parameter) in entry.parameters.iter().enumerate() {
            parameters.row([
                format!("  {place}"),
                parameter.scalar.clone(),
                parameter.bytes.to_string(),
                parameter.offset.to_string(),
                parameter.name.clone(),
            ]);
        }
        text.push_str(&parameters.to_string());
    }
    text
}

fn registers(entry: &EntryOutline) -> String {
    if entry.registers.is_empty() {
        return "none".to_owned();
    }
    let counts: Vec<String> = entry.registers.iter().map(|(scalar, count)| format!("{count} {scalar}")).collect();
    format!("{} (virtual: the driver assigns real ones)", counts.join(", "))
}
