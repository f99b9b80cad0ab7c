//! Compiles the messages in `proto/` to Rust: one file a package, with the package's name, and one with methods of several packages.

use std::{env, error::Error, fmt::Write, fs, path::Path};

use heck::ToUpperCamelCase;
use protox::prost_reflect::prost_types::{EnumDescriptorProto, FileDescriptorProto, field_descriptor_proto::Label};

const PACKAGES: [&str; 5] = ["burst", "cuda", "grants", "inventory", "session"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut messages = protox::compile(PACKAGES.map(|package| format!("{package}.proto")), ["proto"])?;
    let mut methods = String::new();
    for file in &mut messages.file {
        require(file);
        write_methods(file, &mut methods)?;
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("methods.rs"), methods)?;
    prost_build::Config::new()
        .bytes(["."])
        .btree_map(["."])
        .boxed(".sahasra.burst.ClientFrame.kind.open")
        .boxed(".sahasra.session.Welcome.cuda")
        .boxed(".sahasra.session.Welcome.shared_memory")
        .message_attribute(".sahasra.grants.GrantId", "#[derive(PartialOrd, Ord)]")
        .compile_fds(messages)?;
    Ok(())
}

/// Makes the fields whose comment ends with `Required.` required, so that their Rust types are no `Option`s.
fn require(file: &mut FileDescriptorProto) {
    for place in file.source_code_info.iter().flat_map(|info| &info.location) {
        if let [4, message, 2, field] = place.path[..]
            && place.leading_comments().ends_with("Required.\n")
        {
            file.message_type[message as usize].field[field as usize].set_label(Label::Required);
        }
    }
}

/// Writes the names of the codes of failures and rejections, and for each time `x_milliseconds` a method `x`.
fn write_methods(file: &FileDescriptorProto, methods: &mut String) -> std::fmt::Result {
    let package = file.package().trim_start_matches("sahasra.");
    for codes in file.enum_type.iter().filter(|codes| codes.name().ends_with("Code")) {
        writeln!(methods, "labelled! {{ {package}::{} {{ {} }} }}", codes.name(), variants(codes))?;
    }
    for message in &file.message_type {
        for field in &message.field {
            if let Some(time) = field.name().strip_suffix("_milliseconds") {
                let body = format!("Duration::from_millis(self.{})", field.name());
                writeln!(
                    methods,
                    "impl {package}::{} {{ pub fn {time}(&self) -> Duration {{ {body} }} }}",
                    message.name()
                )?;
            }
        }
    }
    Ok(())
}

/// Returns the names of an enumeration's variants in Rust, which lack the enumeration's name.
fn variants(codes: &EnumDescriptorProto) -> String {
    let names = codes.value.iter().map(|code| code.name().to_upper_camel_case());
    let names = names.map(|name| name.trim_start_matches(codes.name()).to_owned());
    names.collect::<Vec<_>>().join(" ")
}
