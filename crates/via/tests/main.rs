//! All integration tests of the crate, in one binary that is linked once.

mod collective_order;
mod connecting;
mod death;
mod descriptor_allocations;
#[cfg(target_os = "linux")]
mod dropping;
mod engines;
mod errors;
mod gate;
mod hostile;
mod hostile_frames;
mod interfaces;
mod live;
mod message_allocations;
mod message_bounds;
mod message_collectives;
mod message_engine;
mod message_futures;
mod message_hostile;
mod message_process;
mod message_progress;
mod message_random;
mod message_recovery;
mod message_scenarios;
mod message_scenarios_live;
mod message_scenarios_vis;
mod message_windows;
mod nic_futures;
mod on_nics;
mod pair;
mod programs;
mod rdma;
mod rdma_crowded;
mod rdma_shm;
mod registered;
mod reliability;
mod restarts;
mod restarts_sim;
mod scenarios;
mod segments;
mod transfers;
mod vi_states;
mod wakers;
#[cfg(feature = "wire")]
mod wire_congestion;
mod wire_endpoint;
#[cfg(feature = "wire")]
mod wire_pair;
#[cfg(feature = "wire")]
mod wire_pipe;
#[cfg(feature = "wire")]
mod wire_socket;
#[cfg(feature = "wire")]
mod wire_tokens;
