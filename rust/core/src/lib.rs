//! The prefix cache of hybrid (attention + recurrent) language models: which KV slots and which recurrent states are
//! kept for which token prefixes. No tensor, no Python: token ids and slot numbers go in, slot numbers come out.
//!
//! [`Tree`] is a radix tree over token ids. Every node owns the KV slots of its edge (one a token, can be cut
//! anywhere), and some own one state slot: the state after exactly the tokens up to the node's end, which cannot
//! be cut. A node without one is a *tombstone*. The two resources have their own recency order, locks and sizes.
//!
//! # Invariants
//!
//! They hold after every call; [`Tree::check`] recomputes them from scratch and names each violation by its number.
//!
//! 1. A slot is in one node at most, and the sets of owned slots are exactly those in the nodes.
//! 2. A root has an empty key, no state, a lock for ever, is in neither queue, and has children.
//! 3. A node other than a root has a stamp of its own in the KV order, and in the state order exactly if it has a
//!    state. The KV queue holds the unlocked leaves, the state queue the states that neither a lock
//!    nor a pending copy protects.
//! 4. A leaf has a state, unless a lock saved it from being deleted.
//! 5. A node's KV locks are at least its state locks, and at least its child's KV locks.
//! 6. A tombstone has no state lock and waits for no state; a state that is still being written has no lock either.
//! 7. The accounts equal the sums over the nodes.
//! 8. (An order that one operation makes: a child younger than its parent. It cannot be seen in a tree at rest; the
//!    model tests compare both recency orders with an oracle's after every operation.)
//! 9. Children differ in their first page; keys, slots and lengths agree and are whole pages; links and the child
//!    table agree.
//! 10. Each queue gives the same nodes from both ends, in the order of their stamps; its heap is in order.
//! 11. The lock counts are exactly those of the receipts that are held, and one on the path of each pending state.
//! 12. With events on, the hashes kept of a node's pages are those of its tokens, chained from the root.

mod account;
pub mod alloc;
mod arena;
mod canonical;
mod check;
mod children;
mod error;
mod events;
mod id;
mod namespaces;
mod node;
mod queue;
mod receipts;
mod slot_set;
mod stats;
mod tree;

pub use account::Sizes;
pub use check::Violation;
pub use error::{Error, Result};
pub use events::{Event, EventMode};
pub use id::{NodeId, Receipt};
pub use stats::Stats;
pub use tree::{Advanced, Config, Entry, Evicted, Inserted, Match, Policy, Reason, Start, Tree};
