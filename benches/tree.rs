//! The core's operations by size: `cargo bench` prints the time of a call and the tokens (nodes) a second.
//!
//! `floor` beside the matches is what no cache can avoid: one compare of the key's bytes and one copy of its slots.
//! Inputs are seeded; every call's answer is checked once before it is timed.

#![expect(clippy::cast_possible_wrap, reason = "sizes of benchmarks are small")]

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use stemcache::{Config, Entry, NodeId, Start, Tree};

const ROOT: Start<'static> = Start::Root(None);

fn tree() -> Tree {
    Tree::new(Config::default()).expect("the default is a possible setting")
}

/// `n` token ids below 150 000 (splitmix64).
fn tokens(seed: u64, n: usize) -> Vec<i64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % 150_000) as i64
    };
    (0..n).map(|_| next()).collect()
}

fn slots(from: usize, n: usize) -> Vec<i64> {
    (from as i64..(from + n) as i64).collect()
}

fn insert(tree: &mut Tree, tokens: &[i64], slots: &[i64], owned: usize, state_slot: i64) -> NodeId {
    let entry = Entry { tokens, slots, state_slot, owned, state_length: None, state_ready: true };
    let done = tree.insert(ROOT, &entry).expect("slots are fresh");
    done.node.expect("the key is not empty")
}

/// One path of `nodes` equal edges over `key`, and its end.
fn path(key: &[i64], nodes: usize) -> (Tree, NodeId) {
    let mut tree = tree();
    let all = slots(1, key.len());
    let mut end = None;
    for i in 1..=nodes {
        let (from, to) = (key.len() * (i - 1) / nodes, key.len() * i / nodes);
        end = Some(insert(&mut tree, &key[..to], &all[..to], from, i as i64));
    }
    (tree, end.expect("there is at least one node"))
}

/// `n` leaves of 16 tokens below the root, the first the oldest.
fn flat(n: usize) -> (Tree, Vec<NodeId>) {
    let mut tree = tree();
    let leaves =
        (0..n).map(|i| insert(&mut tree, &[i as i64; 16], &slots(1 + 16 * i, 16), 0, 1 + i as i64)).collect();
    (tree, leaves)
}

fn matches(c: &mut Criterion) {
    let mut group = c.benchmark_group("match");
    for length in [128, 1024, 8192, 32_768, 131_072] {
        let key = tokens(length as u64, length);
        group.throughput(Throughput::Elements(length as u64));
        for nodes in [1, 64] {
            let (mut tree, _) = path(&key, nodes);
            let query = key.clone();
            assert_eq!(tree.find(ROOT, &query, None).expect("fine").slots, slots(1, length));
            group.bench_function(BenchmarkId::new(format!("{nodes}_nodes"), length), |b| {
                b.iter(|| black_box(tree.find(ROOT, black_box(&query), None)));
            });
        }
        let (query, out) = (key.clone(), slots(1, length));
        group.bench_function(BenchmarkId::new("floor", length), |b| {
            b.iter(|| black_box((black_box(&query) == black_box(&key), black_box(&out).clone())));
        });
    }
    group.finish();
}

fn inserts(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert");
    let key = tokens(1, 9216);
    let all = slots(1, 9216);
    group.bench_function("1k_after_8k", |b| {
        b.iter_batched_ref(
            || path(&key[..8192], 1).0,
            |tree| insert(tree, &key, &all, 8192, 99),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("1k_after_node_at_8k", |b| {
        b.iter_batched_ref(
            || path(&key[..8192], 1),
            |(tree, end)| {
                let (tokens, slots) = (&key[8192..], &all[8192..]);
                let entry =
                    Entry { tokens, slots, state_slot: 99, owned: 0, state_length: None, state_ready: true };
                tree.insert(Start::After(*end), &entry)
            },
            BatchSize::SmallInput,
        );
    });
    group.bench_function("duplicate_9k", |b| {
        let (mut tree, _) = path(&key, 1);
        let fresh = slots(20_000, 9216);
        b.iter(|| insert(&mut tree, black_box(&key), &fresh, 0, 99));
    });
    let fork: Vec<i64> = key[..4096].iter().copied().chain(tokens(2, 1024)).collect();
    let fork_slots: Vec<i64> = slots(1, 4096).into_iter().chain(slots(20_000, 1024)).collect();
    group.bench_function("split_8k_at_4k_and_1k", |b| {
        b.iter_batched_ref(
            || path(&key[..8192], 1).0,
            |tree| insert(tree, &fork, &fork_slots, 4096, 99),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn chunked_prefill(c: &mut Criterion) {
    let mut group = c.benchmark_group("chunked_prefill_8k");
    group.sample_size(10);
    for length in [16_384, 131_072, 1_048_576] {
        let (key, all) = (tokens(3, length), slots(1, length));
        group.throughput(Throughput::Elements(length as u64));
        group.bench_function(BenchmarkId::from_parameter(length), |b| {
            b.iter_batched_ref(
                tree,
                |tree| {
                    let mut receipt = tree.find_and_lock(ROOT, &key[..1], None).expect("fine").1;
                    for (i, (tokens, slots)) in key.chunks(8192).zip(all.chunks(8192)).enumerate() {
                        let entry = Entry {
                            tokens,
                            slots,
                            state_slot: 1 + i as i64,
                            owned: 0,
                            state_length: None,
                            state_ready: true,
                        };
                        receipt = tree.advance(receipt, &entry).expect("fine").receipt;
                    }
                    receipt
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn locks(c: &mut Criterion) {
    let mut group = c.benchmark_group("lock_and_unlock");
    for depth in [1, 64, 1024] {
        let (mut tree, end) = path(&tokens(4, 64 * depth), depth);
        group.bench_function(BenchmarkId::new("depth", depth), |b| {
            b.iter(|| {
                let receipt = tree.lock(end).expect("the node is there");
                tree.unlock(receipt)
            });
        });
    }
    group.finish();
}

/// Calls on leaves all over a tree of many, each as often as any other.
fn by_nodes(c: &mut Criterion) {
    let mut group = c.benchmark_group("by_nodes");
    for n in [1000, 10_000, 100_000] {
        let (mut tree, leaves) = flat(n);
        let mut turn = 0;
        let mut next = move || {
            turn = (turn + 7919) % n;
            turn
        };
        assert_eq!(tree.find(ROOT, &[5; 16], None).expect("fine").length, 16);
        group.bench_function(BenchmarkId::new("match", n), |b| {
            b.iter(|| black_box(tree.find(ROOT, &[next() as i64; 16], None)));
        });
        group.bench_function(BenchmarkId::new("lock_and_unlock", n), |b| {
            b.iter(|| {
                let receipt = tree.lock(leaves[next()]).expect("the leaf is there");
                tree.unlock(receipt)
            });
        });
        // The tree stays as it is: the oldest leaf goes, and comes back as the youngest.
        group.bench_function(BenchmarkId::new("evict_one_and_insert_one", n), |b| {
            let mut token = n as i64;
            b.iter(|| {
                let evicted = tree.evict(1, 0);
                token += 1;
                insert(&mut tree, &[token; 16], &evicted.kv_slots, 0, evicted.state_slots[0])
            });
        });
    }
    group.finish();
}

fn evictions(c: &mut Criterion) {
    let mut group = c.benchmark_group("evict");
    group.sample_size(10);
    for n in [1000, 10_000, 100_000] {
        let tenth = n / 10;
        group.throughput(Throughput::Elements(tenth as u64));
        group.bench_function(BenchmarkId::new("a_tenth_of_the_leaves", n), |b| {
            b.iter_batched_ref(|| flat(n).0, |tree| tree.evict(16 * tenth, 0), BatchSize::PerIteration);
        });
        group.bench_function(BenchmarkId::new("a_tenth_of_the_states", n), |b| {
            b.iter_batched_ref(|| flat(n).0, |tree| tree.evict(0, tenth), BatchSize::PerIteration);
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("first_one_with_nine_tenths_locked", n), |b| {
            b.iter_batched_ref(
                || {
                    let (mut tree, leaves) = flat(n);
                    for leaf in &leaves[..n - tenth] {
                        tree.lock(*leaf).expect("the leaf is there");
                    }
                    tree
                },
                |tree| tree.evict(1, 0),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(all, matches, inserts, chunked_prefill, locks, by_nodes, evictions);
criterion_main!(all);
