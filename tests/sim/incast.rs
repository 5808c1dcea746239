//! Tests incast: many servers answer one client at once, through a switch port with a small buffer, over TCP, and over
//! nodes with and without tokens.

use std::time::Duration;

use midplane::net::{TcpListener, TcpStream};
use midplane::sim::Result;
use midplane::simhw::drops::DropCause;
use midplane::{Node, Sim};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;

const SERVERS: usize = 16;
const BLOCKS: usize = 20;
const BLOCK: usize = 32 << 10;

/// Answers each byte with a block.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result {
    while stream.read(&mut [0]).await? > 0 {
        stream.write_all(&[7; BLOCK]).await?;
    }
    Ok(())
}

/// Requests a block from all servers at once, and waits for all blocks before the next round.
async fn ask(mut streams: Vec<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>) -> Result {
    for _ in 0..BLOCKS {
        let mut asked = JoinSet::new();
        for mut stream in streams.drain(..) {
            asked.spawn(async move {
                stream.write_all(&[1]).await?;
                stream.read_exact(&mut vec![0; BLOCK]).await?;
                Ok::<_, std::io::Error>(stream)
            });
        }
        while let Some(stream) = asked.join_next().await {
            streams.push(stream??);
        }
    }
    Ok(())
}

async fn tcp_server() -> Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        tokio::spawn(answer(listener.accept().await?.0));
    }
}

async fn tcp_client() -> Result {
    let mut streams = Vec::new();
    for server in 0..SERVERS {
        streams.push(TcpStream::connect(format!("server-{server}:80")).await?);
    }
    ask(streams).await
}

async fn node_server(node: Node, server: usize) -> Result {
    let mut listener = node.listen(&format!("blocks-{server}")).await?;
    loop {
        tokio::spawn(answer(listener.accept().await?.0));
    }
}

async fn node_client(node: Node) -> Result {
    let mut streams = Vec::new();
    for server in 0..SERVERS {
        streams.push(node.connect(&format!("blocks-{server}")).await?);
    }
    ask(streams).await
}

/// Returns the goodput at the client as a fraction of the line's rate, and the packets that the switch drops. If
/// `has_tokens`, the client grants tokens for the switch's buffer.
fn goodput(buffer: u32, has_tokens: bool, add: impl Fn(&mut Sim)) -> (f64, u64) {
    let sims = Sim::builder().port_buffer(buffer).limit(Duration::from_secs(600));
    let mut sim = sims
        .nodes(move |host, node| match host {
            "client-1" if has_tokens => node.port_buffer(buffer.into()),
            _ => node,
        })
        .build();
    add(&mut sim);
    let report = sim.run().unwrap();
    let bits = (SERVERS * BLOCKS * BLOCK * 8) as f64;
    (bits / 1e9 / report.time.as_secs_f64(), report.drops.of(DropCause::BufferFull))
}

#[test]
fn tcp_and_nodes_collapse_in_a_small_buffer_and_nodes_with_tokens_do_not() {
    let tcp = |sim: &mut Sim| {
        for server in 0..SERVERS {
            sim.host(format!("server-{server}"), |_| tcp_server());
        }
        sim.client(|_| tcp_client());
    };
    let nodes = |sim: &mut Sim| {
        for server in 0..SERVERS {
            sim.host(format!("server-{server}"), move |node| node_server(node, server));
        }
        sim.client(node_client);
    };
    let (ample, none) = goodput(4 << 20, false, tcp);
    let (small, dropped) = goodput(32 << 10, false, tcp);
    let (ours, ours_dropped) = goodput(32 << 10, false, nodes);
    let (granted, granted_dropped) = goodput(32 << 10, true, nodes);
    println!(
        "TCP {ample:.3}, {small:.3} ({dropped} dropped); nodes {ours:.3} ({ours_dropped} dropped), with tokens \
         {granted:.3} ({granted_dropped} dropped)"
    );
    assert_eq!(none, 0);
    assert!(ample > 0.7, "{ample}");
    assert!(small < ample / 4.0 && dropped > 100, "{small}, {dropped} dropped");
    assert!(ours < ample / 4.0 && ours_dropped > 100, "{ours}, {ours_dropped} dropped");
    assert!(granted > 0.8 && granted_dropped == 0, "{granted}, {granted_dropped} dropped");
}
