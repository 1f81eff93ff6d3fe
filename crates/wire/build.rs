//! Generates the code of the control protocol. protox parses the .proto, so protoc need not be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/windlass.proto");
    let descriptors = protox::compile(["proto/windlass.proto"], ["proto"])?;
    // These two are boxed, or every message would be as large as a full heartbeat.
    tonic_prost_build::configure().boxed("Heartbeat.usage").boxed("Heartbeat.totals").compile_fds(descriptors)?;
    Ok(())
}
