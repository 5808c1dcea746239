//! The scenarios of MPICH's point-to-point tests over Virtual Interfaces, on a network that loses frames.

use crate::pair::Setting;
use crate::pair::job;
use crate::scenarios;
use crate::scenarios::list;
use midplane_simhw::fault::Faults;
use midplane_via::rdma::RdmaConfig;

/// Configures a network that loses, duplicates and reorders frames, and small areas, so that they wrap and credit runs
/// out.
fn lossy(nodes: u16) -> (Setting, RdmaConfig) {
    let faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.03, ..Faults::NONE };
    let setting = Setting { nodes, seed: 11, faults, ..Setting::default() };
    (setting, RdmaConfig::default().area(16_384).descriptors(12))
}

/// Makes a test for each scenario: the group that defines it, its name, the number of ranks.
macro_rules! run {
    ($($group:ident: $($name:ident $ranks:literal),+;)+) => {
        $($(
            #[test]
            fn $name() {
                let (setting, config) = lossy($ranks);
                job::serve_until_all_are_done(setting, config, &|world| {
                    Box::pin(scenarios::$group::$name(world))
                });
            }
        )+)+
    };
}

list::each!(run);
