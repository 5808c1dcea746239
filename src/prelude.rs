//! What most services import: `use midplane::prelude::*;`.

pub use midplane_nicvm::coordination::{self, COORDINATION, Coordination, CoordinationConfig};
pub use midplane_nicvm::messages::{self, MESSAGES};
pub use midplane_nicvm::unit::Unit;
pub use midplane_simhw::host::Host;
pub use midplane_simhw::id::{NodeId, PortId};
pub use midplane_simhw::port::{Command, Completion, Port, Status};
pub use midplane_simhw::region::Region;
pub use midplane_simhw::udp::{UdpConfig, UdpNic};
