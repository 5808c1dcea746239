//! Runs the rows in midplane's `Sim`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use midplane::{Node, Sim, net::UdpSocket, sim, time};
use tokio::task::JoinSet;

use crate::{Failure, NIGHT, for_host_ms, naps, seconds, web};

async fn serve(node: Node) -> sim::Result {
    axum::serve(node.listen("web").await?, web::app()).await?;
    Ok(())
}

pub fn requests() -> Result<(), Failure> {
    let mut sim = Sim::builder().build();
    sim.host("web", serve);
    sim.client(|node| async move {
        let mut connections = JoinSet::new();
        for _ in 0..web::CONNECTIONS {
            connections.spawn(web::ask(node.connect("web").await?));
        }
        connections.join_all().await.into_iter().collect()
    });
    sim.run()?;
    Ok(())
}

pub fn idle(hosts: u32) -> Result<f64, Failure> {
    let virtual_time = Duration::from_secs(2);
    let mut sim = Sim::builder().build();
    for host in 0..hosts {
        sim.host(format!("idle-{host}"), |_| std::future::pending());
    }
    // Starts the hosts.
    sim.run_for(Duration::from_millis(10))?;
    let seconds = seconds(|| Ok(sim.run_for(virtual_time).map(drop)?))?;
    Ok(for_host_ms(hosts, virtual_time, seconds))
}

pub fn round_trip() -> Result<f64, Failure> {
    static TOOK: Mutex<Duration> = Mutex::new(Duration::ZERO);
    let mut sim = Sim::builder().latency(Duration::from_micros(2)).link_mbps(100_000).build();
    sim.host("echo", |_| async {
        let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
        loop {
            let (_, peer) = socket.recv_from(&mut [0; 8]).await?;
            socket.send_to(&[2; 8], peer).await?;
        }
    });
    sim.client(|_| async {
        let socket = UdpSocket::bind("0.0.0.0:7".parse()?)?;
        let start = time::Instant::now();
        socket.send_to(&[1; 8], "10.0.0.1:7".parse()?).await?;
        socket.recv_from(&mut [0; 8]).await?;
        *TOOK.lock().expect("no panic") = start.elapsed();
        Ok(())
    });
    sim.run()?;
    Ok(TOOK.lock().expect("no panic").as_nanos() as f64)
}

/// Returns the sleeps in a second of wall time.
pub fn sleeps() -> Result<f64, Failure> {
    let count = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&count);
    let mut sim = Sim::builder().build();
    sim.host("sleepers", move |_| {
        let count = Arc::clone(&count);
        async move {
            let mut tasks = JoinSet::new();
            for nap in naps() {
                let count = Arc::clone(&count);
                tasks.spawn(async move {
                    loop {
                        time::sleep(nap).await;
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
            tasks.join_all().await;
            Ok(())
        }
    });
    let seconds = seconds(|| Ok(sim.run_for(NIGHT).map(drop)?))?;
    Ok(total.load(Relaxed) as f64 / seconds)
}
