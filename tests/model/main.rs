//! The tree against an oracle that has no tree: random operations, every answer compared, every invariant checked after
//! each one. See `differential.rs` for how to run a million of them.

mod answer;
mod differential;
mod driver;
mod generate;
mod mirror;
mod ops;
mod oracle;
mod regressions;
