//! The scenarios of MPICH's point-to-point tests over lanes, and over Virtual Interfaces on the live fabrics: shared
//! memory, and sockets between which datagrams are lost, duplicated and reordered.

use crate::live;
use crate::scenarios;
use crate::scenarios::list;
use midplane_simhw::fault::Faults;
use midplane_via::rdma::RdmaConfig;

/// Makes the areas small, so that they wrap and credit runs out.
fn narrow() -> RdmaConfig {
    RdmaConfig::default().area(16_384).descriptors(12)
}

/// A test for each scenario over shared memory: the group that defines it, its name, the number of ranks.
#[cfg(target_os = "linux")]
mod shm {
    use super::{list, live, narrow, scenarios};

    macro_rules! run {
        ($($group:ident: $($name:ident $ranks:literal),+;)+) => {
            $($(
                #[test]
                fn $name() {
                    live::shm($ranks, narrow(), &|world| Box::pin(scenarios::$group::$name(world)));
                }
            )+)+
        };
    }

    list::each!(run);
}

/// A test for each scenario over lanes with few slots and short frames: room runs out, and long messages take many
/// parts.
#[cfg(target_os = "linux")]
mod lanes {
    use std::time::Duration;

    use super::{list, live, scenarios};

    macro_rules! run {
        ($($group:ident: $($name:ident $ranks:literal),+;)+) => {
            $($(
                #[test]
                fn $name() {
                    live::lanes(
                        $ranks,
                        |config| config.slots(4).areas(4).mtu(4_096),
                        &|world| Box::pin(scenarios::$group::$name(world)),
                    );
                }
            )+)+
        };
    }

    list::each!(run);

    #[test]
    fn requests_for_a_process_that_never_starts_fail() {
        let within = Duration::from_millis(80);
        live::alone(within, &|world| Box::pin(scenarios::failures::never(world)));
        live::alone(within, &|world| Box::pin(scenarios::failures::never_sent(world)));
    }
}

/// A test for each scenario over sockets.
mod udp {
    use super::{Faults, list, live, narrow, scenarios};

    /// Checks that datagrams meet faults: without, the other tests would prove little.
    #[test]
    fn datagrams_meet_faults() {
        let faulty =
            live::udp(4, narrow(), FAULTS, &|world| Box::pin(scenarios::volume::sendflood(world)));
        assert!(faulty > 20, "only {faulty}");
    }

    const FAULTS: Faults = Faults { loss: 0.02, duplicate: 0.02, reorder: 0.03, ..Faults::NONE };

    macro_rules! run {
        ($($group:ident: $($name:ident $ranks:literal),+;)+) => {
            $($(
                #[test]
                fn $name() {
                    live::udp($ranks, narrow(), FAULTS, &|world| Box::pin(scenarios::$group::$name(world)));
                }
            )+)+
        };
    }

    list::each!(run);
}
