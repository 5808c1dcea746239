//! A guide in ten short chapters, each with a program that runs as it stands.
//!
//! Read them in order, or begin with the one that is your problem. All programs but the second run in virtual
//! time; what they do is the same over sockets and shared memory, as that one shows. From a checkout, this runs the
//! fourth chapter's, and the number is the chapter's; what one prints is seen where it is the `main` of a crate that
//! depends on this one:
//!
//! ```sh
//! cargo test --doc -p midplane chapter_04
//! ```

#[doc = include_str!("../docs/guide/01-first-cluster.md")]
pub mod chapter_01_first_cluster {}
#[doc = include_str!("../docs/guide/02-real-sockets.md")]
pub mod chapter_02_real_sockets {}
#[doc = include_str!("../docs/guide/03-taking-turns.md")]
pub mod chapter_03_taking_turns {}
#[doc = include_str!("../docs/guide/04-messages.md")]
pub mod chapter_04_messages {}
#[doc = include_str!("../docs/guide/05-requests.md")]
pub mod chapter_05_requests {}
#[doc = include_str!("../docs/guide/06-fresh-state.md")]
pub mod chapter_06_fresh_state {}
#[doc = include_str!("../docs/guide/07-together.md")]
pub mod chapter_07_together {}
#[doc = include_str!("../docs/guide/08-transfers.md")]
pub mod chapter_08_transfers {}
#[doc = include_str!("../docs/guide/09-extensions.md")]
pub mod chapter_09_extensions {}
#[doc = include_str!("../docs/guide/10-making-room.md")]
pub mod chapter_10_making_room {}
