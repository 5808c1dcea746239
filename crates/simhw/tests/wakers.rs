//! Tests wakers that run code of their own when a NIC wakes them: they use the NIC, or end what drives it.
#![cfg(target_os = "linux")]

use std::net::{Ipv4Addr, UdpSocket};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use midplane_simhw::hardware::{Firmware, Hardware};
use midplane_simhw::host::Host;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::{Command, Completion, Port, Status};
use midplane_simhw::shm::{ShmConfig, ShmNic};
use midplane_simhw::udp::{Coprocessor, UdpConfig, UdpNic};
use tokio::runtime::Runtime;

/// A firmware that completes each command.
struct Done;

impl Firmware for Done {
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            hw.complete(port, &Completion::of(&command, Status::Done));
            hw.commit();
        }
    }
}

/// A waker that drops what it owns as soon as it is woken.
struct Owner<T> {
    owned: Mutex<Option<T>>,
    woken: Arc<AtomicUsize>,
}

impl<T: Send> Wake for Owner<T> {
    fn wake(self: Arc<Self>) {
        let owned = self.owned.lock().unwrap().take();
        drop(owned);
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `work` on a thread, and fails if it has not ended after a minute.
#[track_caller]
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    std::thread::spawn(move || {
        work();
        done.send(()).expect("it is waited for");
    });
    ended.recv_timeout(Duration::from_secs(60)).expect("it neither hangs nor panics");
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Has `port` wake a waker that owns `owned`, by a command whose doorbell the application rings.
fn wake_owner_of<T: Send + 'static>(port: &mut Port, owned: T) {
    let woken = Arc::new(AtomicUsize::new(0));
    let owner = Owner { owned: Mutex::new(Some(owned)), woken: Arc::clone(&woken) };
    let waker = Waker::from(Arc::new(owner));
    let waits = pin!(port.completion()).poll(&mut Context::from_waker(&waker)).is_pending();
    assert!(waits, "nothing was posted");
    drop(waker);
    port.submit(&Command::default()).unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert!(port.take().is_some());
}

#[test]
fn a_waker_may_drop_a_port_of_the_nic_over_shared_memory_that_wakes_it() {
    ends(|| {
        let runtime = runtime();
        let _inside = runtime.enter();
        let name = format!("wakers-{}", std::process::id());
        let nic = ShmNic::start(ShmConfig::new(name, NodeId(0), 1), Done).unwrap();
        let [mut port, other] = [(); 2].map(|()| nic.host().open_port().unwrap());
        wake_owner_of(&mut port, other);
        runtime.block_on(nic.shutdown());
    });
}

#[test]
fn a_waker_may_drop_the_runtime_of_the_nic_over_udp_that_wakes_it() {
    ends(|| {
        let runtime = runtime();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let config = UdpConfig::new(NodeId(0), vec![socket.local_addr().unwrap()])
            .coprocessor(Coprocessor::Task);
        drop(socket);
        let mut port = runtime.block_on(async {
            let nic = UdpNic::start(config, Done).unwrap();
            let mut port = nic.host().open_port().unwrap();
            // The driver has registered the port.
            port.submit(&Command::default()).unwrap();
            port.completion().await.unwrap();
            port
        });
        wake_owner_of(&mut port, runtime);
    });
}
