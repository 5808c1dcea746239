//! The cost model that chooses an algorithm.
//!
//! Each step that depends on another costs one latency, each further message within a step one overhead, and each
//! byte that a process sends the time of a byte (Hockney's model with LogP's overhead; Thakur, Rabenseifner and
//! Gropp, "Optimization of collective communication operations in MPICH", 2005, section 3).

/// Times of a network, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// From a send to the end of the receive, at a process that waits for the message.
    latency: f64,
    /// The time of each further message within a step.
    overhead: f64,
    /// The time of one byte.
    byte: f64,
}

/// Times between threads of one host, over shared memory. Measured (benchmark `layers`): 283 ns for both ends of a
/// short message, 0.17 ns a byte for one of 1 MiB. Assumed: a thread wakes within 3 us.
pub(super) const HOST: Costs = Costs { latency: 3_000.0, overhead: 300.0, byte: 0.2 };

/// Fewest bytes that are reduced in blocks. Sums of fewer bytes equal those of the NICs' trees, to the last bit.
const LEAST_IN_BLOCKS: usize = 1024;

/// An algorithm that reduces values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reducing {
    /// Up a binomial tree; an all-reduce then broadcasts the result.
    Tree,
    /// By recursive doubling: all values are exchanged in each step.
    Doubling,
    /// By recursive halving, then doubling (Rabenseifner, 2004).
    Halving,
    /// Each process reduces one block of the values, which all others send to it.
    Blocks,
}

/// An algorithm that spreads a root's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Spreading {
    /// Down a binomial tree.
    Tree,
    /// One block for each process, down a binomial tree; all then exchange their blocks (van de Geijn, 1994).
    Blocks,
}

impl Costs {
    /// Chooses the algorithm that reduces `bytes` bytes of each of `ranks` processes to all of them.
    pub(super) fn all_reduce(self, ranks: u32, bytes: usize) -> Reducing {
        let rounds = rounds(ranks);
        let (whole, halved) = (self.byte * bytes as f64, self.parts(ranks, bytes));
        let blocks = (Reducing::Blocks, 2.0 * self.in_blocks(ranks, bytes));
        let others = if ranks.is_power_of_two() {
            let halving = 2.0 * (rounds * self.latency + halved);
            [(Reducing::Doubling, rounds * (self.latency + whole)), (Reducing::Halving, halving)]
        } else {
            [(Reducing::Tree, 2.0 * rounds * (self.latency + whole)); 2]
        };
        cheapest([others[0], others[1], blocks])
    }

    /// Chooses the algorithm that reduces to one process: up a tree, or in blocks.
    pub(super) fn reduce(self, ranks: u32, bytes: usize) -> Reducing {
        let tree = rounds(ranks) * (self.latency + self.byte * bytes as f64);
        let blocks = 2.0 * self.in_blocks(ranks, bytes);
        cheapest([(Reducing::Tree, tree), (Reducing::Blocks, blocks)])
    }

    /// Chooses the algorithm that spreads `bytes` bytes of a root to `ranks` processes.
    pub(super) fn broadcast(self, ranks: u32, bytes: usize) -> Spreading {
        let (whole, halved) = (self.byte * bytes as f64, self.parts(ranks, bytes));
        let tree = rounds(ranks) * (self.latency + whole);
        let blocks = rounds(ranks) * self.latency + self.at_once(ranks) + 2.0 * halved;
        cheapest([(Spreading::Tree, tree), (Spreading::Blocks, blocks)])
    }

    /// Returns the time of one of the two phases of a reduction in blocks; infinite if the values are too short.
    fn in_blocks(self, ranks: u32, bytes: usize) -> f64 {
        if bytes < LEAST_IN_BLOCKS {
            return f64::INFINITY;
        }
        self.at_once(ranks) + self.parts(ranks, bytes)
    }

    /// Returns the time to send a message to each other process.
    fn at_once(self, ranks: u32) -> f64 {
        self.latency + self.overhead * f64::from(ranks - 1)
    }

    /// Returns the time of all bytes except those of a process's own block.
    fn parts(self, ranks: u32, bytes: usize) -> f64 {
        self.byte * bytes as f64 * f64::from(ranks - 1) / f64::from(ranks)
    }
}

fn rounds(ranks: u32) -> f64 {
    f64::from(ranks.next_power_of_two().ilog2())
}

fn cheapest<T: Copy, const N: usize>(plans: [(T, f64); N]) -> T {
    let least = plans.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    least.expect("there are several plans").0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_take_few_steps_and_long_ones_few_bytes() {
        let small = [2, 4, 8, 64].map(|ranks| HOST.all_reduce(ranks, 8));
        assert_eq!(small, [Reducing::Doubling; 4]);
        assert_eq!(HOST.all_reduce(8, 1 << 20), Reducing::Blocks);
        assert_eq!(HOST.all_reduce(9, 1 << 20), Reducing::Blocks);
        assert_eq!(HOST.all_reduce(256, 1 << 17), Reducing::Halving);
        assert_eq!(HOST.all_reduce(5, 8), Reducing::Tree);
        assert_eq!(HOST.broadcast(2, 1 << 20), Spreading::Tree);
        assert_eq!(HOST.broadcast(8, 1 << 20), Spreading::Blocks);
        assert_eq!(HOST.reduce(1, 1 << 20), Reducing::Tree);
    }
}
