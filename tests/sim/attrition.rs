//! Tests TCP echo servers, of which all but two crash, and clients that then connect to another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use midplane::Sim;
use midplane::net::{TcpListener, TcpStream};
use midplane::sim::Result;
use midplane::time::{Instant, sleep, timeout};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};

const SERVERS: u64 = 6;
const TIMEOUT: Duration = Duration::from_millis(200);
const END: Duration = Duration::from_secs(10);

async fn serve() -> Result {
    let listener = TcpListener::bind("0.0.0.0:8080").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut read, mut write) = split(stream);
            copy(&mut read, &mut write).await
        });
    }
}

/// Sends a message each 10 ms over one connection, until `END` or an echo's timeout.
async fn use_server(server: u64, began: Instant, echoed: &AtomicU64) -> Result {
    let address = format!("server-{server}:8080");
    let mut stream = timeout(TIMEOUT, TcpStream::connect(address)).await??;
    while began.elapsed() < END {
        let (sent, mut answer) = (*b"hello", [0; 5]);
        stream.write_all(&sent).await?;
        timeout(TIMEOUT, stream.read_exact(&mut answer)).await??;
        assert_eq!(answer, sent);
        echoed.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[test]
fn clients_move_on_while_servers_crash_one_by_one() {
    let report = Sim::builder().loss(0.01).check(|sim| {
        for server in 0..SERVERS {
            sim.host(format!("server-{server}"), |_| serve());
        }
        for crashed in 0..SERVERS - 2 {
            sim.at(Duration::from_millis(1_000 + 1_700 * crashed))
                .crash(&format!("server-{crashed}"));
        }
        for client in 0..3 {
            sim.client(move |_| async move {
                let (began, echoed) = (Instant::now(), Arc::new(AtomicU64::new(0)));
                let mut server = client;
                while began.elapsed() < END {
                    let _ = use_server(server % SERVERS, began, &echoed).await;
                    server += 1;
                }
                // Each crashed server costs a client less than a second of the ten.
                let echoed = echoed.load(Ordering::Relaxed);
                assert!(echoed > 400, "{echoed}");
                Ok(())
            });
        }
    });
    assert_eq!(report.unwrap().ended.len(), 3);
}
