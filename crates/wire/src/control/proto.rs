//! The generated messages and services of `proto/windlass.proto`.

#![allow(missing_docs, clippy::all)]

tonic::include_proto!("windlass.v1");
