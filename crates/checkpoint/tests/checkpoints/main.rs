//! Checkpoints written and read through the public interface, in directories, in memory and through stores that fail.

mod crash;
mod export;
mod failing;
mod faults;
mod housekeeping;
mod layouts;
mod support;
