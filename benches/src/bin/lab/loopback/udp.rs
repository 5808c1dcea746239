//! Bare datagrams between two of tokio's UDP sockets: the layer below our messages.

use std::io;

use tokio::net::UdpSocket;

use crate::loopback::{Plan, SHORT, now, run_sides};

/// Returns the microseconds of half a round trip.
pub(crate) fn run(plan: Plan) -> io::Result<f64> {
    let (here, there) =
        (std::net::UdpSocket::bind("127.0.0.1:0")?, std::net::UdpSocket::bind("127.0.0.1:0")?);
    here.connect(there.local_addr()?)?;
    for socket in [&here, &there] {
        socket.set_nonblocking(true)?;
    }
    let ask = async move {
        let socket = UdpSocket::from_std(here)?;
        let mut bytes = [7; SHORT];
        let (begin, mut rounds) = (now(), 0_u32);
        while begin.elapsed() < plan.time {
            for _ in 0..50 {
                socket.send(&bytes).await?;
                socket.recv(&mut bytes).await?;
                rounds += 1;
            }
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
    };
    let echo = async move {
        let socket = UdpSocket::from_std(there)?;
        let mut bytes = [7; SHORT];
        loop {
            let (_, from) = socket.recv_from(&mut bytes).await?;
            socket.send_to(&bytes, from).await?;
        }
    };
    run_sides(plan.placement, ask, echo)
}
