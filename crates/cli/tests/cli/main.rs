//! The real binary, as its users meet it: what it says, what it leaves behind, and how it ends.

mod addresses;
mod checkpoints;
mod cluster;
mod data;
mod digits;
mod dynamic;
mod identity;
mod in_process;
mod layers;
mod leases;
mod modes;
mod oracle;
mod output;
mod own_crate;
mod pictures;
mod process;
mod processes;
mod recovery;
mod resuming;
mod rows;
mod screen;
mod seq2seq;
mod sleepers;
mod tasks;
mod translating;
mod usage;
