//! Which version of Windlass this is.

use windlass_instruments::Build;

/// The version of the crate.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that it was built from; `unknown` outside of a repository.
pub(crate) const COMMIT: &str = env!("WINDLASS_COMMIT");

pub(crate) fn build() -> Build {
    Build { version: VERSION.to_owned(), commit: COMMIT.to_owned() }
}
