//! Durable checkpoints, which appear completely or not at all and can be restored by any number of servers.
//!
//! Every server writes its share of the parameters as one immutable object; when all are there, the coordinator
//! publishes a manifest that names them with their sizes and checksums. What has no manifest is not a checkpoint.
//! Nothing is renamed or overwritten, so a directory and an object store behave alike:
//!
//! ```text
//! generations/000003                                       the coordinator that claimed generation 3 may publish; it
//!                                                          renews the claim while it lives
//! 000000012000-g000003-5d20c19e.json                       a manifest: step 12000, attempt 5d20c19e
//! 000000012000-g000003-5d20c19e/ps-0-of-2.safetensors      its parts
//! 000000012000-g000003-5d20c19e/ps-1-of-2.safetensors
//! 000000012345-g000003-8f1c77a0/ps-0-of-2.safetensors      being written, or left by a crash
//! files/8d0c3f…                                            a file that goes with the values, named by its content
//! ```
//!
//! Names sort by step. The newest checkpoint is that of the greatest generation, and within it of the greatest step: a
//! run that rolled back counts from the older checkpoint. The attempt is random, so that a retry never meets the
//! remains of an earlier one.
//!
//! A part is a safetensors file which can be read by itself. Its tensors are, in the order of the server's plan:
//! 1. `embedding[1::2]/steps`: the step counts of every row of every stripe (`u64`; first, so that they are aligned);
//! 2. `hidden.weight[0..78400]`: the values of every dense segment (`f32`, like all that follow);
//! 3. `hidden.weight[0..78400]/velocity`: the optimizer's slots, each over all dense segments;
//! 4. `embedding[1::2]`, `embedding[1::2]/velocity`: values and slots of each stripe, one stripe after the other. What is
//!    frozen is among them, and has no slots.
//!
//! The header's metadata hold the id, the server, the run and the plan. Checksums are XXH3-128, one for every
//! [`CHUNK_BYTES`], so that a server which needs only some of a part can check what it reads. They guard against
//! accidents, not against someone who can write to the store.
//!
//! In a directory every object is synced to the disk, and so is its directory, before the call that wrote it returns.
//! Removals are not: after a power failure a removed manifest may be back without its parts, and is then passed over.
//! Uploads that a crash cut short stay invisible in an object store until its lifecycle rules remove them.
//!
//! This crate does not decide when a checkpoint is taken, nor how values stand still while it is.

mod checksum;
mod discard;
mod error;
mod export;
mod file;
mod generation;
mod header;
mod holder;
mod id;
mod image;
mod layout;
mod lease;
mod list;
mod location;
mod manifest;
mod occupancy;
mod part;
mod prune;
mod read;
mod restore;
mod store;
mod verify;

pub use checksum::{CHUNK_BYTES, Checksum};
pub use error::{CheckpointError, Damage};
pub use export::NamedValues;
pub use holder::Holder;
pub use id::{BadCheckpointId, CheckpointId};
pub use image::ShardImage;
pub use layout::PartLayout;
pub use lease::{Ending, Followed, Lease, Pulse, RENEW_EVERY, RunEnd};
pub use list::{Found, Listed};
pub use manifest::{FORMAT, Manifest, PartRecord, ServerState, WorkerPosition, WorkerState};
pub use occupancy::Occupancy;
pub use part::PartWriter;
pub use prune::Pruned;
pub use restore::{Restore, SlotPolicy};
pub use store::{ReadCounter, Store};
pub use verify::{PartReport, VerifyReport};

// Tensors are written as they lie in memory, and safetensors are little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "checkpoints are written on little-endian machines only");
