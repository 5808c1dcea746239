//! The scenarios of MPICH's point-to-point tests, each over several networks in memory.

use crate::scenarios;
use crate::scenarios::list;

/// Makes a test for each scenario: the group that defines it, its name, the number of ranks.
macro_rules! run {
    ($($group:ident: $($name:ident $ranks:literal),+;)+) => {
        $($(
            #[test]
            fn $name() {
                scenarios::harness::run($ranks, &|world| Box::pin(scenarios::$group::$name(world)));
            }
        )+)+
    };
}

list::each!(run);

#[test]
fn collective_operations_are_right_for_every_number_of_ranks() {
    for ranks in 1..10 {
        scenarios::harness::run(ranks, &|world| Box::pin(scenarios::collective::broadcasts(world)));
        scenarios::harness::run(ranks, &|world| Box::pin(scenarios::collective::reductions(world)));
        scenarios::harness::run(ranks, &|world| Box::pin(scenarios::collective::gathers(world)));
        scenarios::harness::run(ranks, &|world| Box::pin(scenarios::collective::typed(world)));
        scenarios::harness::run(ranks, &|world| Box::pin(scenarios::collective::barriers(world)));
    }
}
