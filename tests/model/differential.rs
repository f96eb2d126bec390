//! Random operations on the tree and on the oracle, one at a time.
//!
//! The default run takes some ten thousand operations. A deep one, of more than a million:
//!
//! ```text
//! MODEL_CASES=12000 cargo test --release --test model differential
//! ```
//!
//! `MODEL_CASES` is how many trees are tried, `MODEL_STEPS` the operations on each (before it is emptied victim by
//! victim), `MODEL_SEED` where the numbers begin. A failure is cut to a short script and printed; put it into
//! `tests/regressions` with the answers it should have had.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use stemcache::Config;

use crate::driver::Driver;
use crate::generate::{Generator, Random, config};
use crate::ops::{Op, header};

const CASES: u64 = 400;
const STEPS: u64 = 90;

/// What a default run must have seen this often, or the generator has gone blind.
const MUST_SEE: [(&str, u64); 34] = [
    ("reason None", 100),
    ("reason Some(Namespace)", 20),
    ("reason Some(Limit)", 50),
    ("reason Some(StateEvicted)", 50),
    ("reason Some(NoState)", 50),
    ("reason Some(Miss)", 100),
    ("refused Argument", 50),
    ("refused StaleNode", 50),
    ("refused StaleLock", 10),
    ("refused NotLocked", 50),
    ("refused SlotRange", 50),
    ("refused SlotOwner", 50),
    ("refused Namespace", 10),
    ("duplicates freed", 100),
    ("advanced", 100),
    ("split", 100),
    ("split under a lock", 20),
    ("split of a tombstone", 10),
    ("state exists", 100),
    ("state revived", 20),
    ("state gained under a lock", 20),
    ("lock of a tombstone", 20),
    ("lock of nothing", 20),
    ("unlock of a node that has a state which the lock does not hold", 20),
    ("state published", 50),
    ("state discarded", 20),
    ("a discarded state takes its node along", 10),
    ("lock of a node whose state is pending", 3),
    ("tombstone made", 100),
    ("locked leaf loses its state", 20),
    ("childless tombstone evicted", 10),
    ("cascade", 20),
    ("a lock stops a cascade", 10),
    ("drop_namespace leaves a locked node", 5),
];

fn knob(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a knob is a number"))
}

/// A case: settings and the operations that the generator made for them.
struct Case {
    config: Config,
    ops: Vec<Op>,
    coverage: BTreeMap<String, u64>,
    failed: Option<String>,
}

fn run(number: u64, steps: u64) -> Case {
    let seed = knob("MODEL_SEED", 1).wrapping_mul(0x0100_0000_01b3) ^ number;
    let mut random = Random::new(seed);
    let config = config(number, &mut random);
    let mut generator = Generator::new(&config, random);
    let (mut driver, mut ops) = (Driver::new(&config), Vec::new());
    let failed = catch_unwind(AssertUnwindSafe(|| {
        while let Some(op) = next(&mut generator, &mut driver, ops.len() as u64, steps, number) {
            ops.push(op.clone());
            driver.step(&op)?;
        }
        Ok(())
    }));
    let failed = failed.unwrap_or_else(|panic| Err(panic_text(&*panic))).err();
    Case { config, ops, coverage: driver.coverage(), failed }
}

fn next(generator: &mut Generator, driver: &mut Driver, done: u64, steps: u64, number: u64) -> Option<Op> {
    if done < steps { Some(generator.next(driver)) } else { Generator::drain(driver, number % 8 < 4) }
}

/// Runs given operations; what went wrong, and at which of them.
fn replay(config: &Config, ops: &[Op]) -> Option<(usize, String)> {
    let mut driver = Driver::new(config);
    for (place, op) in ops.iter().enumerate() {
        match catch_unwind(AssertUnwindSafe(|| driver.step(op))) {
            Ok(Ok(_)) => {}
            Ok(Err(what)) => return Some((place, format!("{what}\n\nthe tree then:\n{}", driver.dump()))),
            Err(panic) => return Some((place, panic_text(&*panic))),
        }
    }
    None
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("a panic: {}", text.unwrap_or_default())
}

// ---- Making a failure short ----

fn shrink(config: &Config, mut ops: Vec<Op>) -> Vec<Op> {
    loop {
        let before = ops.clone();
        if let Some((place, _)) = replay(config, &ops) {
            ops.truncate(place + 1);
        }
        ops = without_ops(config, ops);
        ops = with_shorter_keys(config, ops);
        if ops == before {
            return ops;
        }
    }
}

/// Leaves out what the failure does not need, large parts first.
fn without_ops(config: &Config, mut ops: Vec<Op>) -> Vec<Op> {
    let mut size = ops.len().max(1);
    while size > 0 {
        let mut from = 0;
        while from < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(from..(from + size).min(ops.len()));
            if replay(config, &fewer).is_some() {
                ops = fewer;
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    ops
}

fn with_shorter_keys(config: &Config, mut ops: Vec<Op>) -> Vec<Op> {
    for place in 0..ops.len() {
        let mut length = ops[place].tokens_mut().map_or(0, |tokens| tokens.len());
        while length > 0 {
            length -= 1;
            let mut shorter = ops.clone();
            let tokens = shorter[place].tokens_mut().expect("it had a length");
            tokens.remove(length.min(tokens.len() - 1));
            if replay(config, &shorter).is_some() {
                ops = shorter;
            }
        }
    }
    ops
}

fn report(number: u64, case: &Case) -> String {
    std::panic::set_hook(Box::new(|_| {}));
    let ops = shrink(&case.config, case.ops.clone());
    let what =
        replay(&case.config, &ops).map_or_else(|| "it does not fail again".to_owned(), |(_, what)| what);
    let _ = std::panic::take_hook();
    let mut script = header(&case.config);
    for op in &ops {
        let _ = write!(script, "\n{op}");
    }
    format!("case {number}: tree and oracle differ\n\n{script}\n\n{what}\n\nat first: {:?}", case.failed)
}

// ---- The tests ----

#[test]
fn tree_and_oracle_agree_on_random_operations() {
    let (cases, steps) = (knob("MODEL_CASES", CASES), knob("MODEL_STEPS", STEPS));
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut done = 0;
    for number in 0..cases {
        let case = run(number, steps);
        assert!(case.failed.is_none(), "{}", report(number, &case));
        done += case.ops.len();
        case.coverage.into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
    }
    eprintln!("{done} operations on {cases} trees: {seen:#?}");
    if cases >= CASES && steps >= STEPS {
        let times = |what: &str| seen.get(what).copied().unwrap_or(0);
        let blind: Vec<_> = MUST_SEE.iter().filter(|(what, least)| times(what) < *least).collect();
        assert!(blind.is_empty(), "the generator hardly made these: {blind:?}");
    }
}

#[test]
fn equal_histories_have_equal_digests() {
    for number in 0..16 {
        let case = run(number, STEPS);
        let (mut one, mut other) = (Driver::new(&case.config), Driver::new(&case.config));
        for op in &case.ops {
            let _ = (one.step(op), other.step(op));
            assert_eq!(one.digest(), other.digest(), "case {number}, after {op}");
            assert_eq!(one.dump(), other.dump(), "case {number}, after {op}");
        }
    }
}

#[test]
fn an_operation_is_what_its_text_says() {
    for number in 0..16 {
        for op in run(number, STEPS).ops {
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }
}
