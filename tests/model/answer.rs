//! An answer in a form that the tree's and the oracle's can be compared in, and that a script can expect.

use std::fmt::Write as _;

use stemcache::{Error, Reason};

use crate::oracle::{Found, Freed, Mistake, Stored};

/// What a call gave, with nodes and receipts by the order in which they were first named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Found(Found, Option<usize>),
    Stored(Stored),
    Advanced(Stored, Vec<i64>, usize),
    Locked(usize),
    Done,
    Freed(Freed),
    Refused(Vec<Mistake>),
    /// The operation names a node or a receipt that was never seen: a shrinker cut too much.
    Skipped,
}

pub(crate) fn verdict<T>(verdict: Result<T, Vec<Mistake>>) -> Answer {
    verdict.map_or_else(Answer::Refused, |_| Answer::Done)
}

pub(crate) fn outcome<T>(outcome: stemcache::Result<T>) -> Answer {
    outcome.map_or_else(|error| Answer::Refused(vec![mistake(&error)]), |_| Answer::Done)
}

fn mistake(error: &Error) -> Mistake {
    match error {
        Error::Argument { .. } => Mistake::Argument,
        Error::StaleNode(_) => Mistake::StaleNode,
        Error::StaleLock => Mistake::StaleLock,
        Error::NotPending(_) => Mistake::NotPending,
        Error::NotLocked(_) => Mistake::NotLocked,
        Error::SlotRange { .. } => Mistake::SlotRange,
        Error::SlotOwner { .. } => Mistake::SlotOwner,
        Error::Namespace { .. } => Mistake::Namespace,
        other @ (Error::Config { .. } | Error::OutOfMemory { .. }) => panic!("a call answered {other}"),
    }
}

pub(crate) fn freed(freed: Freed) -> Answer {
    Answer::Freed(Freed { kv: sorted(freed.kv), states: sorted(freed.states) })
}

pub(crate) fn freed_by_tree(evicted: stemcache::Evicted) -> Answer {
    freed(Freed { kv: evicted.kv_slots, states: evicted.state_slots })
}

pub(crate) fn sorted(mut slots: Vec<i64>) -> Vec<i64> {
    slots.sort_unstable();
    slots
}

// ---- Answers as words, for scripts ----

impl Answer {
    /// The answer in words like `length=3`; a script may expect any of them.
    pub(crate) fn words(&self) -> String {
        let mut words = String::new();
        match self {
            Self::Found(found, receipt) => found_words(&mut words, found, *receipt),
            Self::Stored(stored) => stored_words(&mut words, stored),
            Self::Advanced(stored, slots, receipt) => {
                stored_words(&mut words, stored);
                let _ = write!(words, " slots={} receipt=#{receipt}", slots.len());
            }
            Self::Locked(receipt) => words = format!("receipt=#{receipt}"),
            Self::Done => words.push_str("ok"),
            Self::Freed(freed) => words = format!("tokens={} states={}", freed.kv.len(), freed.states.len()),
            Self::Refused(mistakes) => words = format!("refused={:?}", mistakes[0]),
            Self::Skipped => words.push_str("skipped"),
        }
        words
    }
}

fn found_words(words: &mut String, found: &Found, receipt: Option<usize>) {
    let reason = match found.reason {
        None => "none",
        Some(Reason::Namespace) => "namespace",
        Some(Reason::Limit) => "limit",
        Some(Reason::StateEvicted) => "state_evicted",
        Some(Reason::NoState) => "no_state",
        Some(Reason::Miss) => "miss",
    };
    let _ = write!(words, "length={} kv={} reason={reason}", found.length, found.kv_length);
    let _ =
        write!(words, " node={} branch={}", or_none("@", found.node), or_none("", found.branching_length));
    let _ = write!(words, " receipt={}", or_none("#", receipt));
}

fn stored_words(words: &mut String, stored: &Stored) {
    let (prefix, exists, freed) = (stored.prefix_length, stored.state_exists, stored.freed_slots.len());
    let _ = write!(words, "prefix={prefix} exists={exists} freed={freed} node={}", or_none("@", stored.node));
}

fn or_none(mark: &str, number: Option<impl std::fmt::Display>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| format!("{mark}{number}"))
}
