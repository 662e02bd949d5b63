//! Each example is started, and does what its documentation says.

mod axum;
mod batch;
mod hyper;
mod playground;
mod process;
mod signature;
mod store;
mod storm;
mod tonic;
mod web;

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/fixtures.rs"]
mod fixtures;
