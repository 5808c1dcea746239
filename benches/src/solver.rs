//! Linear systems by asynchronous iteration, over a network that is too small for them.

pub mod arguments;
mod background;
pub mod fabrics;
pub mod figures;
mod frames;
mod lead;
mod message;
mod outbox;
mod pace;
pub mod problem;
mod program;
pub mod rank;
mod rounds;
pub mod run;
pub mod setting;
mod shared;
mod traces;

#[cfg(test)]
mod tests;
