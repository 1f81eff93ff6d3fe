//! Generates the control protocol's code. protox parses the .proto, so no protoc has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/windlass.proto");
    let descriptors = protox::compile(["proto/windlass.proto"], ["proto"])?;
    // Otherwise every message would be as large as this one.
    tonic_prost_build::configure().boxed("Heartbeat.usage").boxed("Heartbeat.totals").compile_fds(descriptors)?;
    Ok(())
}
