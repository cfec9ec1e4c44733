//! Turns the protocol definitions into Rust without needing a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let definitions = protox::compile(["csi.proto", "pluginregistration.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(definitions)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
