//! Any frames and any pauses between them: the control messages of a unit never panic and never
//! send without end.

use midplane_nicvm::control::{Control, ControlConfig};
use midplane_simhw::frame::Header;
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId};
use midplane_simhw::time::Instant;

pub(crate) fn run(bytes: &[u8]) {
    let mut control = Control::new(NodeId(0), Incarnation::FIRST, ControlConfig::default());
    let mut now = Instant::from_nanos(1);
    let _ = control.send(now, NodeId(1), ExtensionId(1), b"hello");
    for chunk in bytes.chunks(64) {
        let Some((pause, frame)) = chunk.split_first() else { return };
        now = now.plus_nanos(u64::from(*pause) * 3_000_000);
        let mut whole = frame.to_vec();
        if whole.len() >= 48 {
            // What a receiver checks before the firmware sees it.
            whole[..2].copy_from_slice(&[midplane_simhw::frame::MAGIC, 1]);
            whole[6..8].fill(0);
            let length = (whole.len() - 48) as u16;
            whole[16..18].copy_from_slice(&length.to_le_bytes());
            whole[30..32].fill(0);
        }
        if let Ok((header, body)) = Header::parse(&whole) {
            control.handle_frame(now, &header, body);
        }
        control.handle_timeout(now);
        let mut sent = 0;
        while control.poll_transmit(now).is_some() {
            sent += 1;
            assert!(sent < 1_000, "it sends without end");
        }
        while control.poll_event().is_some() {}
    }
}
