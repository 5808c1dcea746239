//! Daemons of gang scheduling that an example starts, of itself, and jobs under them.

pub mod parts;
pub mod stage;
