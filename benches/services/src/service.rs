//! The service: an axum router, once over each listener.

use std::io::Write;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use midplane::Node;

use crate::Failure;
use crate::arguments::Transport;

static LARGE: [u8; 4 << 20] = [7; 4 << 20];

fn router() -> Router {
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/large", get(|| async { Bytes::from_static(&LARGE) }))
}

/// Serves until the process is killed; the first line of the output says where.
pub async fn serve(transport: Transport) -> Result<(), Failure> {
    match transport {
        Transport::Tcp => {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            say(&listener.local_addr()?.to_string());
            // As hyper's and tonic's servers do.
            let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
                let _ = stream.set_nodelay(true);
            });
            axum::serve(listener, router()).await?;
        }
        Transport::Shm => {
            let cluster = format!("services-{}", std::process::id());
            let node = Node::builder().cluster(&cluster).start().await?;
            let listener = node.listen("service").await?;
            say(&cluster);
            axum::serve(listener, router()).await?;
        }
        Transport::Udp => {
            let node = Node::builder().transports("udp").start().await?;
            let listener = node.listen("service").await?;
            say(&node.address().ok_or("no address")?.to_string());
            axum::serve(listener, router()).await?;
        }
    }
    Ok(())
}

fn say(place: &str) {
    println!("{place}");
    let _ = std::io::stdout().flush();
}
