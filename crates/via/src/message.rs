//! Messages with MPI's matching rules, over whatever carries packets.
//!
//! Two layers, as in LAM/MPI: an upper one that knows modes, communicators and collectives, and a
//! lower one, behind the trait of LAM's eight functions, that moves requests forward.
//!
//! - [`envelope`], [`matching`]: what travels before a message, and which receive it meets

pub mod envelope;
pub mod matching;
