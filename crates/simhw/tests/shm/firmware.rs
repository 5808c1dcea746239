//! A small firmware for the tests.

use std::sync::{Arc, Mutex};

use midplane_simhw::frame::{Frame, Header};
use midplane_simhw::hardware::{Firmware, Hardware, Source};
use midplane_simhw::id::{NodeId, PortId, TimerId};
use midplane_simhw::region::Payload;
use midplane_simhw::shm::{ShmConfig, ShmNic};

/// Bytes of a frame: more than fit into a slot, and no multiple of a line.
pub(crate) const BYTES: usize = 3_001;

/// A frame as it arrived.
pub(crate) type Arrival = (Header, Vec<u8>);

/// The frames that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(pub(crate) Arc<Mutex<Vec<Arrival>>>);

/// Keeps arriving frames. If `floods` is true, floods node 0 with frames that repeat their number in the payload.
pub(crate) struct Probe {
    pub(crate) seen: Seen,
    pub(crate) floods: bool,
    pub(crate) sent: u32,
}

impl Probe {
    pub(crate) fn new(floods: bool) -> (Self, Seen) {
        let seen = Seen::default();
        (Self { seen: seen.clone(), floods, sent: 0 }, seen)
    }
}

/// The payload of a frame.
pub(crate) fn payload(number: u32) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(BYTES).collect()
}

impl Firmware for Probe {
    fn on_start(&mut self, hw: &mut impl Hardware) {
        if self.floods {
            hw.set_timer(TimerId(0), hw.now());
            hw.commit();
        }
    }

    /// Takes commands and completes none; panics at one with flags.
    fn on_doorbell(&mut self, hw: &mut impl Hardware, port: PortId) {
        while let Some(command) = hw.next_command(port) {
            assert_eq!(command.flags, 0, "on purpose");
        }
    }

    fn on_frame(&mut self, _: &mut impl Hardware, frame: Frame<'_>) {
        self.seen.0.lock().unwrap().push((frame.header, frame.payload.to_vec()));
    }

    fn on_timer(&mut self, hw: &mut impl Hardware, timer: TimerId) {
        for _ in 0..8 {
            let header = Header {
                source: hw.node(),
                destination: NodeId(0),
                sequence: self.sent,
                length: BYTES as u16,
                ..Header::default()
            };
            let bytes = payload(self.sent);
            if hw.transmit(&header, Source::Bytes(Payload::from(&bytes[..]))).is_err() {
                break;
            }
            self.sent += 1;
        }
        hw.set_timer(timer, hw.now().plus_nanos(1_000));
        hw.commit();
    }
}

/// Starts a NIC that keeps arriving frames.
pub(crate) fn start(config: ShmConfig) -> (ShmNic, Seen) {
    let (probe, seen) = Probe::new(false);
    (ShmNic::start(config, probe).unwrap(), seen)
}

/// Runs a test on a runtime of its own.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

/// Returns the name of a fabric that no other test and no other run uses.
pub(crate) fn name(test: &str) -> String {
    format!("test {} {test}", std::process::id())
}
