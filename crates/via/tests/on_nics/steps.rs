//! Steps that all processes take together, by NICs or by hosts.

use futures_util::future::join_all;
use midplane_via::message::collective::Operation;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::group::Rank;
use midplane_via::message::typed::to_bytes;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Barrier,
    Broadcast { root: u32, length: usize },
    AllGather { lengths: Vec<usize> },
    Reduce { root: u32, operation: Operation, words: usize },
    AllReduce { operation: Operation, words: usize },
    AddFloats { root: u32, words: usize },
    Gather { root: u32, length: usize },
    Join { length: usize },
}

impl Step {
    /// Returns how many operations of the NICs the step takes.
    pub(crate) fn by_nics(&self, size: u32) -> u64 {
        match self {
            _ if size == 1 => 0,
            Self::Barrier | Self::AllGather { .. } => 1,
            Self::Broadcast { length, .. } => 1 + u64::from((85..=1 << 20).contains(length)),
            Self::Reduce { words, .. } | Self::AllReduce { words, .. } => u64::from(*words <= 11),
            Self::AddFloats { words, .. } => 2 * u64::from(*words <= 11),
            Self::Gather { .. } | Self::Join { .. } => 0,
        }
    }

    /// Takes the step; returns the result of this process.
    async fn take(&self, world: &Communicator, at: usize) -> Vec<Vec<u8>> {
        let (own, size) = (world.rank().0, world.size());
        let root_of = |root: u32| Rank(root % size);
        match self {
            Self::Barrier => {
                world.barrier().await.unwrap();
                Vec::new()
            }
            Self::Broadcast { root, length } => {
                let root = root_of(*root);
                let bytes = if Rank(own) == root { block(own, at, *length) } else { vec![7; 300] };
                vec![world.broadcast(root, bytes).await.unwrap().to_vec()]
            }
            Self::AllGather { lengths } => {
                let bytes = block(own, at, lengths[own as usize % lengths.len()]);
                let all = world.all_gather(bytes).await.unwrap();
                all.into_iter().map(|block| block.to_vec()).collect()
            }
            Self::Reduce { root, operation, words } => {
                let words = numbers(own, at, *words);
                let got = world.reduce(root_of(*root), &words, *operation).await.unwrap();
                got.into_iter().map(bytes).collect()
            }
            Self::AllReduce { operation, words } => {
                let words = numbers(own, at, *words);
                vec![bytes(world.all_reduce(&words, *operation).await.unwrap())]
            }
            Self::AddFloats { root, words } => {
                let floats = floats(own, at, *words);
                let got = world.reduce(root_of(*root), &floats, Operation::Sum);
                let all = world.all_reduce(&floats, Operation::Sum);
                let (got, all) = (got.await.unwrap(), all.await.unwrap());
                got.into_iter().chain([all]).map(|sums| to_bytes(&sums).to_vec()).collect()
            }
            Self::Gather { root, length } => {
                let got = world.gather(root_of(*root), block(own, at, *length)).await.unwrap();
                got.into_iter().flatten().map(|block| block.to_vec()).collect()
            }
            Self::Join { length } => {
                let first = |_: &mut u8, _: &u8| ();
                vec![world.all_reduce(&block(own, at, *length), first).await.unwrap()]
            }
        }
    }
}

/// Takes all of these steps at once.
pub(crate) async fn take(world: &Communicator, at: usize, steps: &[Step]) -> Vec<Vec<Vec<u8>>> {
    join_all(steps.iter().map(|step| step.take(world, at))).await
}

fn block(rank: u32, at: usize, length: usize) -> Vec<u8> {
    let start = rank as usize * 37 + at * 11;
    (start..start + length).map(|number| (number % 251) as u8).collect()
}

fn numbers(rank: u32, at: usize, words: usize) -> Vec<u64> {
    let number =
        |index: usize| u64::from(rank * 7 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 >> index);
    (at..at + words).map(|index| number(index % 64)).collect()
}

/// Returns numbers whose sum depends on the order in which they are added.
fn floats(rank: u32, at: usize, words: usize) -> Vec<f64> {
    let number = |index: usize| 1e3_f64.powi(rank as i32 % 5) / (index + at + 3) as f64;
    (0..words).map(number).collect()
}

fn bytes(words: Vec<u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let operation = || {
        use Operation::{And, Max, Min, Or, Sum};
        prop::sample::select(vec![Sum, Min, Max, And, Or])
    };
    let words = || prop_oneof![4 => 0..=11_usize, 1 => 12..40_usize];
    let length = || prop_oneof![0..=90_usize, 83..=86_usize, 89..20_000_usize];
    let lengths = prop_oneof![
        prop::collection::vec(0..=84_usize, 1..8),
        prop::collection::vec(0..=100_usize, 1..8),
    ];
    prop_oneof![
        2 => Just(Step::Barrier),
        2 => (any::<u32>(), length()).prop_map(|(root, length)| Step::Broadcast { root, length }),
        2 => lengths.prop_map(|lengths| Step::AllGather { lengths }),
        2 => (any::<u32>(), operation(), words())
            .prop_map(|(root, operation, words)| Step::Reduce { root, operation, words }),
        2 => (operation(), words())
            .prop_map(|(operation, words)| Step::AllReduce { operation, words }),
        1 => (any::<u32>(), words()).prop_map(|(root, words)| Step::AddFloats { root, words }),
        1 => (any::<u32>(), length()).prop_map(|(root, length)| Step::Gather { root, length }),
        1 => (0..300_usize).prop_map(|length| Step::Join { length }),
    ]
}
