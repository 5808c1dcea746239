//! Page rank and shortest paths as fixed points x = F(x), by ranks that iterate asynchronously.
//!
//! - [`graph`]: a directed graph, from a file or built in
//! - [`page_rank`], [`shortest_paths`]: F of each problem
//! - [`ranks`]: the iteration, in processes or on simulated hosts

pub mod graph;
pub mod page_rank;
pub mod ranks;
pub mod shortest_paths;
