//! Where a server keeps its shard, which is replaced during a run: streams and the coordinator find the current one.

use std::sync::{Arc, PoisonError, RwLock};

use windlass_wire::link::{Peer, ServeError, Shard};
use windlass_wire::stream::frame::Request;

use crate::shard::ParameterShard;

/// The slot of a shard, which is allocated once the run is known, and recreated when the run rolls back to a
/// checkpoint.
#[derive(Default)]
pub(crate) struct ShardSlot(RwLock<Option<Arc<ParameterShard>>>);

impl ShardSlot {
    pub(crate) fn get(&self) -> Option<Arc<ParameterShard>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, shard: ParameterShard) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(shard));
    }

    /// Empties the slot, and ends all waits for its shard.
    pub(super) fn clear(&self) {
        if let Some(shard) = self.0.write().unwrap_or_else(PoisonError::into_inner).take() {
            shard.close();
        }
    }
}

impl Shard for ShardSlot {
    fn serve(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        match self.get() {
            Some(shard) => shard.serve(request, peer),
            // The worker retries.
            None => Err(std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "no parameters here yet").into()),
        }
    }
}
