//! Addresses of sockets, by name or number.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::VirtualHost;
use super::kernel::Kernel;

mod sealed {
    #[expect(unnameable_types, reason = "other crates do not implement the trait")]
    pub trait Sealed {}
}

/// An address of a socket: numeric, or `HOST:PORT` with the name of a simulated host. Counterpart of tokio's
/// `ToSocketAddrs`.
#[expect(
    private_interfaces,
    reason = "other crates use the trait, and implement or call nothing of it"
)]
pub trait ToAddress: sealed::Sealed {
    #[doc(hidden)]
    fn to_address(&self, kernel: &Arc<Kernel>) -> io::Result<SocketAddr>;
}

macro_rules! to_address {
    ($($kind:ty: |$this:ident, $kernel:ident| $address:expr;)*) => {$(
        impl sealed::Sealed for $kind {}

        #[expect(private_interfaces, reason = "as the trait")]
        impl ToAddress for $kind {
            fn to_address(&self, $kernel: &Arc<Kernel>) -> io::Result<SocketAddr> {
                let $this = self;
                $address
            }
        }
    )*};
}

fn resolve(kernel: &Arc<Kernel>, place: &str) -> io::Result<SocketAddr> {
    VirtualHost(Arc::clone(kernel)).resolve(place)
}

to_address! {
    SocketAddr: |this, _kernel| Ok(*this);
    (IpAddr, u16): |this, _kernel| Ok((*this).into());
    (Ipv4Addr, u16): |this, _kernel| Ok((*this).into());
    &str: |this, kernel| resolve(kernel, this);
    String: |this, kernel| resolve(kernel, this);
    &String: |this, kernel| resolve(kernel, this);
    (&str, u16): |this, kernel| resolve(kernel, &format!("{}:{}", this.0, this.1));
}
