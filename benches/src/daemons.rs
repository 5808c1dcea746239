//! Daemons of gang scheduling that a program starts from its own binary, and jobs under them.

pub mod parts;
pub mod stage;
