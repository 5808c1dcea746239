//! Daemons of gang scheduling that an example starts, of itself, and jobs under them.

pub(crate) mod parts;
pub(crate) mod stage;
