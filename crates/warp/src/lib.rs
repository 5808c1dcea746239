//! Warp congestion control, conditional send, Mermera's memory, asynchronous iterations.
//!
//! Nothing is here yet. The crate will hold the rate laws as an admission of `midplane-nicvm`,
//! and above them memory whose writes know when not to be sent.
#![forbid(unsafe_code)]
