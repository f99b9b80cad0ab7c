//! Compiles the messages in `proto/` to Rust.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=../wire/proto");
    let messages = protox::compile(["executor.proto"], ["proto", "../wire/proto"])?;
    prost_build::Config::new()
        .bytes(["."])
        .extern_path(".sahasra.burst", "::sahasra_wire::burst")
        .extern_path(".sahasra.grants", "::sahasra_wire::grants")
        .compile_fds(messages)?;
    Ok(())
}
