//! Random failures in random order.

use super::*;

impl Net {
    fn holder(&self) -> Option<usize> {
        let holds = |node: &Node| match &node.role {
            Role::Sender(link) => link.holds(),
            _ => false,
        };
        self.nodes.iter().position(holds)
    }

    fn cut(&mut self, a: usize, b: usize) {
        if a != b {
            self.cuts.insert((a.min(b), a.max(b)));
        }
    }

    /// Makes one failure happen: a crash, a restart, a departure, a cut link or slower messages; mostly at the holder
    /// and the witness.
    fn mishap(&mut self, rng: &mut Rng) {
        let any = rng.below(self.nodes.len() as u64) as usize;
        let holder = self.holder().unwrap_or(any);
        let witness = self.senders();
        match rng.below(14) {
            0 => self.crash(any),
            1 => self.crash(holder),
            2 => self.restart(any),
            3 | 4 => {
                let at = [any, holder, witness][rng.below(3) as usize];
                self.crash(at);
                self.run_for(rng.below(LEASE_NS / 4));
                self.restart(at);
            }
            5 => self.cut(any, rng.below(witness as u64 + 1) as usize),
            6 | 7 => self.cut(holder, any),
            8 => self.cut(holder, witness),
            9 => self.cuts.clear(),
            10 => {
                let cuts: Vec<_> = self.cuts.iter().copied().collect();
                if let Some(cut) = cuts.get(rng.below(cuts.len() as u64) as usize) {
                    self.cuts.remove(cut);
                }
            }
            11 => self.leave(any),
            12 => self.leave(holder),
            _ => self.slowest_ns = rng.between(10_000, 5_000_000),
        }
    }
}

/// Runs senders that all want to send through a series of failures, all from one seed.
fn scenario(seed: u64) {
    let mut rng = Rng::new(seed, "scenario");
    let senders = rng.between(1, 5) as usize;
    let mut net = Net::new(seed, senders, rng.chance(0.7));
    for node in &mut net.nodes[..senders] {
        node.wanted = if rng.chance(0.8) { 1_000_000 } else { 1 };
    }
    net.run_for(rng.below(3 * LEASE_NS));
    for _ in 0..rng.between(3, 20) {
        net.mishap(&mut rng);
        let pause = if rng.chance(0.6) { LEASE_NS / 2 } else { 4 * LEASE_NS };
        net.run_for(rng.below(pause));
    }
    net.heal();
    net.slowest_ns = 60_000;
    net.run_for(2 * LEASE_NS);
    net.all_get_a_turn(400);
}

#[test]
fn random_scenarios_keep_one_holder_and_give_every_sender_a_turn() {
    (0..500).for_each(scenario);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn one_holder_and_every_sender_gets_a_turn_from_new_seeds(seed: u64) {
        scenario(seed);
    }
}

#[test]
fn a_sender_that_was_excluded_supports_the_next_epoch_that_it_is_asked_in() {
    scenario(5_922_529_755_107_685_612);
}
