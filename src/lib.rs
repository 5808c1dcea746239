#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod guide;
pub mod prelude;

pub use midplane_gang as gang;
pub use midplane_nicvm as nicvm;
pub use midplane_pipeline as pipeline;
pub use midplane_simhw as simhw;
pub use midplane_via as via;
pub use midplane_warp as warp;
