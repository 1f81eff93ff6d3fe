//! Where runs are kept: a volume mounted at `/runs`, or an object store for the checkpoints. This module must not open
//! anything.

use std::fmt;
use std::str::FromStr;

use url::Url;

use crate::Error;
use crate::names::check_object;

/// A place that outlives pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// An existing persistent volume claim: `pvc:NAME`. With several ps it must be ReadWriteMany.
    Claim(String),
    /// A directory of an NFS server: `nfs:SERVER:/PATH`.
    Nfs {
        /// Its host name or address.
        server: String,
        /// The exported directory.
        path: String,
    },
    /// A directory that every node has under the same path: `file:/PATH`. Only for Slurm and Compose.
    Directory(String),
    /// An object store: `s3://BUCKET/PREFIX`, `gs://…` or `az://…`, without a slash at the end.
    Objects(String),
}

impl fmt::Display for Storage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Claim(name) => write!(formatter, "pvc:{name}"),
            Storage::Nfs { server, path } => write!(formatter, "nfs:{server}:{path}"),
            Storage::Directory(path) => write!(formatter, "file:{path}"),
            Storage::Objects(url) => formatter.write_str(url),
        }
    }
}

impl FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Storage, Error> {
        let bad = |problem: &str| Error::Storage { text: text.to_owned(), problem: problem.to_owned() };
        if text.contains("://") {
            return objects(text).map_err(|problem| bad(&problem));
        }
        let (kind, rest) = text.split_once(':').ok_or_else(|| bad("no kind of storage"))?;
        match kind {
            "pvc" => {
                check_object("claim", rest)?;
                Ok(Storage::Claim(rest.to_owned()))
            }
            "nfs" => {
                let (server, path) = rest.split_once(":/").ok_or_else(|| bad("no server and absolute path"))?;
                let in_host = |character: char| character.is_ascii_alphanumeric() || ".-:[]".contains(character);
                if server.is_empty() || !server.chars().all(in_host) {
                    return Err(bad("no server, or not a host"));
                }
                Ok(Storage::Nfs { server: server.to_owned(), path: absolute(&format!("/{path}")).map_err(bad)? })
            }
            "file" => Ok(Storage::Directory(absolute(rest).map_err(bad)?)),
            _ => Err(bad("unknown kind of storage")),
        }
    }
}

fn absolute(path: &str) -> Result<String, &'static str> {
    if !path.starts_with('/') {
        return Err("the path is not absolute");
    }
    if path.contains(|character: char| character.is_control()) || path.split('/').any(|part| part == "..") {
        return Err("the path contains .. or control characters");
    }
    Ok(path.to_owned())
}

fn objects(text: &str) -> Result<Storage, String> {
    let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
    if !matches!(url.scheme(), "s3" | "gs" | "az") {
        return Err(format!("unknown scheme {}://", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("no bucket".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("only a bucket and a prefix can be given, credentials come from a Secret".to_owned());
    }
    Ok(Storage::Objects(text.trim_end_matches('/').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_written_as_it_is_read() {
        for text in ["pvc:runs", "nfs:10.0.0.1:/export/runs", "file:/scratch", "s3://bucket/a/b", "gs://b", "az://c/d"]
        {
            assert_eq!(text.parse::<Storage>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_slash_at_the_end_of_a_prefix_does_not_count() {
        assert_eq!("s3://b/runs/".parse::<Storage>().unwrap().to_string(), "s3://b/runs");
    }

    #[test]
    fn what_is_no_storage_is_refused_with_the_reason() {
        for (text, problem) in [
            ("runs", "no kind of storage"),
            ("ftp://host/x", "unknown scheme ftp://"),
            ("s3:///x", "no bucket"),
            ("s3://key:secret@b/x", "only a bucket and a prefix can be given, credentials come from a Secret"),
            ("disk:/x", "unknown kind of storage"),
            ("nfs:server", "no server and absolute path"),
            ("nfs::/x", "no server, or not a host"),
            ("nfs:h,evil=1:/x", "no server, or not a host"),
            ("file:x", "the path is not absolute"),
            ("file:/a/../b", "the path contains .. or control characters"),
        ] {
            let error = text.parse::<Storage>().unwrap_err();
            assert_eq!(error, Error::Storage { text: text.to_owned(), problem: problem.to_owned() });
        }
        assert!(matches!("pvc:A".parse::<Storage>(), Err(Error::Object { .. })));
    }
}
