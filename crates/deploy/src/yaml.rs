//! Documents of a manifest, one after the other.

use serde::Serialize;

use crate::{Error, Request};

/// A manifest being written.
pub(crate) struct Manifest {
    text: String,
    has_documents: bool,
}

impl Manifest {
    /// Starts with comments on how to use the manifest and what else there is to know.
    pub(crate) fn new(request: &Request, comments: &[String]) -> Manifest {
        let mut text = format!("# A Windlass run: {}.\n", counted(request));
        for comment in comments {
            text.push_str(&format!("# {comment}\n"));
        }
        Manifest { text, has_documents: false }
    }

    pub(crate) fn add(&mut self, document: &impl Serialize) -> Result<(), Error> {
        if self.has_documents {
            self.text.push_str("---\n");
        }
        self.has_documents = true;
        // YAML 1.1 parsers, such as the one in kubectl, do not read `off` and `1_000` as text, so these are quoted.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        let document = serde_saphyr::to_string_with_options(document, options);
        self.text.push_str(&document.map_err(|error| Error::Yaml(error.to_string()))?);
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

fn counted(request: &Request) -> String {
    let workers = format!("{} worker{}", request.workers, if request.workers == 1 { "" } else { "s" });
    match request.ps {
        0 => format!("{workers} that hold the parameters"),
        ps => format!("{ps} ps and {workers}"),
    }
}
