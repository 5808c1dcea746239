//! Sockets of simulated hosts, for protocols of your own in a [`Sim`](crate::Sim). With the feature `axum`, axum serves a
//! [`TcpListener`]; with `sim-quinn`, `QuinnRuntime` makes endpoints of quinn.
//!
//! [`TcpListener`] and [`TcpStream`] are used as tokio's are, by names of hosts or by addresses:
//!
//! ```
//! use midplane::net::{TcpListener, TcpStream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! midplane::Sim::builder().loss(0.01).check(|sim| {
//!     sim.host("orders", |_| async {
//!         let listener = TcpListener::bind("0.0.0.0:80").await?;
//!         loop {
//!             let (mut stream, _) = listener.accept().await?;
//!             tokio::spawn(async move { stream.write_all(b"ok").await });
//!         }
//!     });
//!     sim.client(|_| async {
//!         let mut stream = TcpStream::connect("orders:80").await?;
//!         let mut answer = String::new();
//!         stream.read_to_string(&mut answer).await?;
//!         assert_eq!(answer, "ok");
//!         Ok(())
//!     });
//! })?;
//! # Ok::<_, midplane::sim::SimError>(())
//! ```
//!
//! UDP sockets and quinn take addresses alone. The host that was added first has 10.0.0.1, the second 10.0.0.2, and so on;
//! clients are hosts too. [`VirtualHost::resolve`](midplane_simhw::services::VirtualHost::resolve) returns the address for a
//! name, in the code of a host.

#[cfg(feature = "axum")]
pub use midplane_simhw::services::PeerAddress;
#[cfg(feature = "sim-quinn")]
pub use midplane_simhw::services::QuinnRuntime;
pub use midplane_simhw::services::{
    Arrival, BACKLOG, Datagram, TCP_BUFFER_BYTES, TcpListener, TcpStream, ToAddress, UdpSocket,
};
