//! Each example is started, and does what its documentation says.

mod axum;
mod hyper;
mod playground;
mod process;
mod signature;
mod storm;
mod tonic;
mod web;

#[path = "../support/mod.rs"]
mod support;
