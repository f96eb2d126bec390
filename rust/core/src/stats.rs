//! Plain counters of what the tree has done.

use crate::tree::{Match, Reason};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the tree was made; `reset` does not touch them.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }
    };
}

counters! {
    /// Calls of `find`.
    matches,
    /// Usable tokens over all matches.
    matched_tokens,
    /// Tokens whose KV was there but no state.
    kv_only_tokens,
    /// Matches cut short because nothing was cached in the namespace.
    short_by_namespace,
    /// Matches cut short by the caller's limit.
    short_by_limit,
    /// Matches cut short because a state had been evicted.
    short_by_state_evicted,
    /// Matches cut short because no state was ever kept.
    short_by_no_state,
    /// Matches cut short because the tree did not have the tokens.
    short_by_miss,
    /// Calls of `insert` and `advance`.
    inserts,
    /// Tokens that the tree took.
    stored_tokens,
    /// Tokens given that the tree had already.
    duplicate_tokens,
    /// States that the tree took.
    stored_states,
    /// States given where there was one already.
    duplicate_states,
    /// Nodes cut in two.
    splits,
    /// Tokens freed by eviction or a dropped namespace.
    evicted_tokens,
    /// States freed by eviction or a dropped namespace.
    evicted_states,
    /// Of these, the ones whose KV stayed.
    tombstoned_states,
    /// States taken out before they could be used, because they were not worth keeping.
    discarded_states,
    /// Locks held now.
    locks_held,
}

impl Stats {
    pub(crate) fn count_match(&mut self, found: &Match) {
        self.matches += 1;
        self.matched_tokens += found.length as u64;
        self.kv_only_tokens += (found.kv_length - found.length) as u64;
        match found.reason {
            None => {}
            Some(Reason::Namespace) => self.short_by_namespace += 1,
            Some(Reason::Limit) => self.short_by_limit += 1,
            Some(Reason::StateEvicted) => self.short_by_state_evicted += 1,
            Some(Reason::NoState) => self.short_by_no_state += 1,
            Some(Reason::Miss) => self.short_by_miss += 1,
        }
    }
}
