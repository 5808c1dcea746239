//! Two nodes of a test, over each transport, on the test's own runtime.

use std::sync::atomic::{AtomicU32, Ordering};

use midplane::{Node, NodeBuilder};

/// The transport that carries the streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Over {
    Shm,
    Udp,
}

/// Returns the name of a cluster that no other test has.
pub fn cluster_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("foreign-{}-{number}", std::process::id())
}

/// Returns a builder of nodes of a cluster that no other test has.
#[allow(dead_code, reason = "programs are given the cluster's name")]
pub fn cluster() -> NodeBuilder {
    Node::builder().cluster(cluster_name())
}

/// Starts a service's node and a client's node.
#[allow(dead_code, reason = "a program is the client")]
pub async fn nodes(over: Over) -> (Node, Node) {
    let builder = cluster();
    let builder = if over == Over::Udp { builder.transports("udp") } else { builder };
    let service = builder.clone().name("service").start().await.unwrap();
    let client = match service.address() {
        Some(address) => builder.discover(address.to_string()),
        None => builder,
    };
    (service, client.name("client").start().await.unwrap())
}

/// Makes a test of each function over each transport, on one thread and on two.
macro_rules! over_each {
    ($(async fn $name:ident($over:ident) $body:block)*) => {
        $(async fn $name($over: Over) $body)*
        over_each! { @each shm Shm "current_thread" $($name)* }
        over_each! { @each udp Udp "current_thread" $($name)* }
        over_each! { @each shm_threads Shm "multi_thread" $($name)* }
        over_each! { @each udp_threads Udp "multi_thread" $($name)* }
    };
    (@each $module:ident $over:ident $flavor:literal $($name:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = $flavor)]
                async fn $name() {
                    super::$name(super::Over::$over).await;
                }
            )*
        }
    };
}
pub(crate) use over_each;
