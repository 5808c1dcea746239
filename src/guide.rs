//! A guide in short chapters, each with a program that runs as it stands.
//!
//! The first six chapters are for services. The others describe the lower layers: NICs, firmware and messages, in virtual
//! time and over sockets. They need the feature `fabric`, some also `gang`, `pipeline` or `warp`, and the last one
//! `unstable`. In a checkout, this runs the program of chapter 4:
//!
//! ```sh
//! cargo test --doc -p midplane chapter_04
//! ```

// A line before a chapter defines a link as a module. Of two definitions Markdown takes the first, so the chapter's own
// definition, a file, counts only outside of rustdoc.

#[cfg(unix)]
#[doc = "[next]: crate::guide::chapter_02_two_hosts"]
#[doc = include_str!("../docs/guide/01-a-service.md")]
pub mod chapter_01_a_service {}
#[cfg(unix)]
#[doc = "[next]: crate::guide::chapter_03_calls"]
#[doc = include_str!("../docs/guide/02-two-hosts.md")]
pub mod chapter_02_two_hosts {}
#[cfg(unix)]
#[doc = "[next]: crate::guide::chapter_04_messages"]
#[doc = include_str!("../docs/guide/03-calls.md")]
pub mod chapter_03_calls {}
#[cfg(unix)]
#[doc = "[next]: crate::guide::chapter_05_latest_values"]
#[doc = include_str!("../docs/guide/04-messages.md")]
pub mod chapter_04_messages {}
#[cfg(unix)]
#[cfg_attr(feature = "sim", doc = "[next]: crate::guide::chapter_06_tests")]
#[doc = include_str!("../docs/guide/05-latest-values.md")]
pub mod chapter_05_latest_values {}
#[cfg(all(feature = "sim", unix))]
#[doc = "[next]: crate::guide::chapter_07_virtual_time"]
#[doc = include_str!("../docs/guide/06-tests.md")]
pub mod chapter_06_tests {}
#[doc = "[chapter 9]: crate::guide::chapter_09_taking_turns"]
#[doc = "[chapter 10]: crate::guide::chapter_10_messages_of_ranks"]
#[doc = "[next]: crate::guide::chapter_08_real_sockets"]
#[doc = include_str!("../docs/guide/07-virtual-time.md")]
pub mod chapter_07_virtual_time {}
#[doc = "[next]: crate::guide::chapter_09_taking_turns"]
#[doc = include_str!("../docs/guide/08-real-sockets.md")]
pub mod chapter_08_real_sockets {}
#[cfg_attr(unix, doc = "[chapter 2]: crate::guide::chapter_02_two_hosts#many-senders-one-receiver")]
#[doc = "[next]: crate::guide::chapter_10_messages_of_ranks"]
#[doc = include_str!("../docs/guide/09-taking-turns.md")]
pub mod chapter_09_taking_turns {}
#[doc = "[next]: crate::guide::chapter_11_fresh_state"]
#[doc = include_str!("../docs/guide/10-messages-of-ranks.md")]
pub mod chapter_10_messages_of_ranks {}
#[doc = "[next]: crate::guide::chapter_12_together"]
#[doc = include_str!("../docs/guide/11-fresh-state.md")]
pub mod chapter_11_fresh_state {}
#[doc = "[chapter 10]: crate::guide::chapter_10_messages_of_ranks"]
#[doc = "[next]: crate::guide::chapter_13_transfers"]
#[doc = include_str!("../docs/guide/12-together.md")]
pub mod chapter_12_together {}
#[doc = "[next]: crate::guide::chapter_14_extensions"]
#[doc = include_str!("../docs/guide/13-transfers.md")]
pub mod chapter_13_transfers {}
#[doc = "[chapter 8]: crate::guide::chapter_08_real_sockets"]
#[doc = "[next]: crate::guide::chapter_15_making_room"]
#[doc = include_str!("../docs/guide/14-extensions.md")]
pub mod chapter_14_extensions {}
#[doc = "[next]: crate::guide::chapter_16_a_fabric"]
#[doc = include_str!("../docs/guide/15-making-room.md")]
pub mod chapter_15_making_room {}
#[doc = include_str!("../docs/guide/16-a-fabric.md")]
/// ```rust
#[doc = include_str!("../docs/guide/16-a-fabric.rs")]
/// ```
pub mod chapter_16_a_fabric {}
