//! How many tokens (states) the tree holds, by whether a lock protects them.

/// One resource's count. Invariant: the sum over the nodes, by lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) evictable: usize,
    pub(crate) protected: usize,
}

impl Account {
    /// The first lock on `amount`.
    pub(crate) fn protect(&mut self, amount: usize) {
        self.evictable -= amount;
        self.protected += amount;
    }

    /// The last lock on `amount` is gone.
    pub(crate) fn release(&mut self, amount: usize) {
        self.protected -= amount;
        self.evictable += amount;
    }
}

/// Tokens and states in a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens in nodes without a lock.
    pub evictable_tokens: usize,
    /// Tokens in locked nodes.
    pub protected_tokens: usize,
    /// States without a lock of their own.
    pub evictable_states: usize,
    /// Locked states.
    pub protected_states: usize,
}

impl Sizes {
    pub(crate) fn new(kv: Account, state: Account) -> Self {
        Self {
            evictable_tokens: kv.evictable,
            protected_tokens: kv.protected,
            evictable_states: state.evictable,
            protected_states: state.protected,
        }
    }
}
