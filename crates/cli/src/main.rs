//! The `windlass` binary: every role, every model that comes with it.

use std::process::ExitCode;

use windlass::models;

/// Training allocates and frees large buffers every step; the system's allocator gives them back to the kernel
/// each time, which doubles the time of a small network's step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    windlass::Program::new().with::<models::Linear>().with::<models::Mnist>().with::<models::Seq2Seq>().run()
}
