//! Runs the rows in turmoil, and the sleeps in bach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use turmoil::net::{TcpListener, TcpStream, UdpSocket};

use crate::{Failure, NIGHT, for_host_ms, naps, seconds, web};

/// turmoil's listener, as axum requires it.
struct Listener(TcpListener);

impl axum::serve::Listener for Listener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        self.0.accept().await.expect("turmoil's sockets accept")
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

fn builder(latency: Duration) -> turmoil::Builder {
    let mut builder = turmoil::Builder::new();
    builder.simulation_duration(Duration::from_secs(36_000));
    builder.min_message_latency(latency).max_message_latency(latency);
    builder
}

pub fn requests() -> Result<(), Failure> {
    let mut sim = builder(Duration::from_millis(1)).build();
    sim.host("web", || async {
        let listener = TcpListener::bind((IpAddr::from(Ipv4Addr::UNSPECIFIED), 80)).await?;
        axum::serve(Listener(listener), web::app()).await?;
        Ok(())
    });
    sim.client("client", async {
        let mut connections = JoinSet::new();
        for _ in 0..web::CONNECTIONS {
            connections.spawn(web::ask(TcpStream::connect(("web", 80)).await?));
        }
        for result in connections.join_all().await {
            result.map_err(|error| error.to_string())?;
        }
        Ok(())
    });
    sim.run().map_err(|error| error.to_string().into())
}

pub fn idle(hosts: u32) -> Result<f64, Failure> {
    let virtual_time = Duration::from_millis(200);
    let mut sim = builder(Duration::from_millis(1)).build();
    for host in 0..hosts {
        sim.host(format!("idle-{host}"), std::future::pending::<turmoil::Result>);
    }
    let steps = |sim: &mut turmoil::Sim<'_>, count| {
        (0..count).try_for_each(|_| sim.step().map(drop)).map_err(|error| error.to_string())
    };
    steps(&mut sim, 10)?;
    let seconds = seconds(|| Ok(steps(&mut sim, virtual_time.as_millis())?))?;
    Ok(for_host_ms(hosts, virtual_time, seconds))
}

pub fn round_trip() -> Result<f64, Failure> {
    static TOOK: Mutex<Duration> = Mutex::new(Duration::ZERO);
    let any = (IpAddr::from(Ipv4Addr::UNSPECIFIED), 7);
    let mut sim = builder(Duration::from_micros(2)).build();
    sim.host("echo", move || async move {
        let socket = UdpSocket::bind(any).await?;
        loop {
            let (_, peer) = socket.recv_from(&mut [0; 8]).await?;
            socket.send_to(&[2; 8], peer).await?;
        }
    });
    sim.client("client", async move {
        let socket = UdpSocket::bind(any).await?;
        let start = tokio::time::Instant::now();
        socket.send_to(&[1; 8], ("echo", 7)).await?;
        socket.recv_from(&mut [0; 8]).await?;
        *TOOK.lock().expect("no panic") = start.elapsed();
        Ok(())
    });
    sim.run().map_err(|error| error.to_string())?;
    Ok(TOOK.lock().expect("no panic").as_nanos() as f64)
}

/// Returns the sleeps of bach's tasks in a second of wall time.
pub fn sleeps() -> Result<f64, Failure> {
    let count = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&count);
    let seconds = seconds(|| {
        bach::sim(move || {
            for nap in naps() {
                let count = Arc::clone(&count);
                bach::spawn(async move {
                    loop {
                        bach::time::sleep(nap).await;
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
            bach::task::primary::spawn(bach::time::sleep(NIGHT));
        });
        Ok(())
    })?;
    Ok(total.load(Relaxed) as f64 / seconds)
}
