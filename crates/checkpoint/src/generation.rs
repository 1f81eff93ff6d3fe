//! Decides who may publish: a coordinator claims the next generation when it starts, which revokes the right of its
//! predecessors.

use crate::error::CheckpointError;
use crate::store::Store;

/// How often to retry a claim when other processes are quicker.
pub(crate) const CLAIMS: usize = 1000;

const FOLDER: &str = "generations";

impl Store {
    /// The next generation if this is the newest one claimed.
    pub(crate) async fn generation_after(&self, newest: u64) -> Result<u64, CheckpointError> {
        let published = self.ids().await?.manifests.iter().map(|id| id.generation).max().unwrap_or(0);
        Ok(newest.max(published) + 1)
    }

    pub(crate) fn outrun(&self) -> CheckpointError {
        let (location, object) = (self.location.clone(), FOLDER.to_owned());
        let reason = format!("lost the race to {CLAIMS} other processes");
        CheckpointError::Store { location, action: "claim", object, reason }
    }

    /// The newest generation claimed; 0 if there is none.
    pub async fn newest_generation(&self) -> Result<u64, CheckpointError> {
        let listed = self.list_below(FOLDER).await?;
        let number = |name: &str| name.strip_prefix(FOLDER)?.strip_prefix('/')?.parse().ok();
        Ok(listed.iter().filter_map(|object| number(self.name(&object.location))).max().unwrap_or(0))
    }

    /// Fails if a generation has been superseded, or if its claim no longer exists.
    pub(crate) async fn check_generation(&self, generation: u64) -> Result<(), CheckpointError> {
        let newest = self.newest_generation().await?;
        if newest > generation {
            return Err(CheckpointError::Fenced { generation, newest });
        }
        match newest < generation {
            true => Err(CheckpointError::Vanished { location: self.location.clone() }),
            false => Ok(()),
        }
    }

    /// Removes the claims of all generations but the newest.
    pub(crate) async fn forget_generations(&self) -> Result<(), CheckpointError> {
        let newest = generation_object(self.newest_generation().await?);
        for object in self.list_below(FOLDER).await? {
            let name = self.name(&object.location);
            if name < newest.as_str() {
                self.remove(name).await?;
            }
        }
        Ok(())
    }
}

pub(crate) fn generation_object(generation: u64) -> String {
    format!("{FOLDER}/{generation:06}")
}
