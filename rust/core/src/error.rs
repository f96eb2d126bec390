//! What a caller can get wrong: one variant per mistake, the offending values in its fields.
//!
//! Every call checks first and changes afterwards, so an `Err` means that nothing changed. A broken
//! invariant of our own is never an `Error`: it is a violation that [`crate::Tree::check`] reports.

use crate::id::NodeId;

/// The result of a call that may refuse its arguments.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A setting that no cache can have.
    #[error("{name} is {given}, but {rule}")]
    Config {
        /// The setting.
        name: &'static str,
        /// What was given.
        given: String,
        /// What it must be.
        rule: String,
    },
    /// A number that a call cannot take.
    #[error("{name} is {given}, but {rule}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// What was given.
        given: i64,
        /// What it must be.
        rule: String,
    },
    /// A handle to a node that is gone (or was never this index's).
    #[error(
        "node {} is not in the tree: it was evicted, dropped or reset, or it belongs to another index",
        .0.to_u64()
    )]
    StaleNode(NodeId),
    /// A receipt from before the last reset (or of another index).
    #[error("the lock is from before the last reset(), which released it")]
    StaleLock,
    /// Releasing what is not held.
    #[error("{0}")]
    NotLocked(&'static str),
    /// Publishing or discarding a state that does not wait to be written.
    #[error("node {} has no state that waits to be written", .0.to_u64())]
    NotPending(NodeId),
    /// The host has not enough memory for what was asked.
    #[error("{what} needs {bytes} bytes on the host, which cannot be had")]
    OutOfMemory {
        /// What.
        what: String,
        /// How many.
        bytes: usize,
    },
    /// A slot number that cannot be a slot.
    #[error("{kind} slot {slot} is not a slot: numbers go from 1 to {largest} (0 is the dummy)")]
    SlotRange {
        /// `KV` or `state`.
        kind: &'static str,
        /// The number.
        slot: i64,
        /// The largest number allowed.
        largest: i64,
    },
    /// A slot that somebody else owns, or nobody.
    #[error("{kind} slot {slot} {problem}")]
    SlotOwner {
        /// `KV` or `state`.
        kind: &'static str,
        /// The slot.
        slot: i64,
        /// What is wrong with it, as the end of a sentence.
        problem: String,
    },
    /// A call that goes on from a node names another namespace than the node's.
    #[error("namespace {given:?} was given, but the node to go on from is in namespace {node:?}")]
    Namespace {
        /// The call's.
        given: Option<String>,
        /// The node's.
        node: Option<String>,
    },
}
