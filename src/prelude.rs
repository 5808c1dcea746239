//! The names that most services need: `use midplane::prelude::*;`.

pub use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[cfg(unix)]
pub use crate::{Error, Node};
