//! The names that most services need: `use midplane::prelude::*;`.

pub use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[cfg(target_os = "linux")]
pub use crate::{Error, Node};
