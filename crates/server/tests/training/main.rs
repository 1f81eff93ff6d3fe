//! Training on real servers in one process, with synthetic gradients in place of a model.

mod cluster;
mod numbers;
mod proxy;
mod streams;
mod worker;

mod intruders;
mod large;
mod lifecycle;
mod limits;
mod retries;
mod rounds;
mod rows;
mod staleness;
mod values;
