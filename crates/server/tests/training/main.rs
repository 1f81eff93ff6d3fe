//! Training on real servers in one process, with synthetic gradients in place of a model.

mod absurd;
mod attempt;
mod cluster;
mod faults;
mod marks;
mod network;
mod numbers;
mod proxy;
mod streams;
mod worker;

mod intruders;
mod kinds;
mod large;
mod lifecycle;
mod limits;
mod once;
mod retries;
mod rounds;
mod rows;
mod staleness;
mod strangers;
mod values;
mod viewers;
