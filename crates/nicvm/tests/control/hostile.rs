//! Forged frames.

use std::time::Duration;

use midplane_nicvm::control::ControlConfig;
use midplane_simhw::frame::{Header, Kind};
use midplane_simhw::id::{ExtensionId, Incarnation, NodeId, PortId};
use proptest::prelude::*;

use super::network::Network;

/// Generates small numbers, close to the expected ones, and arbitrary ones.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0_u32..4, 1 => any::<u32>(), 1 => (u32::MAX - 40)..=u32::MAX]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(vec![
        Kind::Data,
        Kind::Control,
        Kind::Acknowledge,
        Kind::Hello,
        Kind::Welcome,
    ])
}

prop_compose! {
    fn any_frame()(
        kind in kind(), source in 0_u16..4, destination in 0_u16..2, numbers in [(); 8].map(|()| number()),
        length in prop_oneof![Just(None), any::<u16>().prop_map(Some)], extension: u8, flags: u8,
        body in prop_oneof![Just(Vec::new()), prop::collection::vec(any::<u8>(), 0..200)],
    ) -> (Header, Vec<u8>) {
        let [incarnation, to, sequence, acknowledgement, beyond, delay, number, echo] = numbers;
        let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let header = Header {
            kind,
            extension: ExtensionId(extension),
            source: NodeId(source),
            destination: NodeId(destination),
            incarnation: Incarnation(incarnation),
            destination_incarnation: Incarnation(to),
            length: length.unwrap_or(body.len() as u16),
            port: PortId(0),
            sequence,
            acknowledgement,
            flags,
            hop_limit: 1,
            words: [word(beyond, delay), word(number, echo)],
        };
        (header, body)
    }
}

proptest! {
    #[test]
    fn arbitrary_frames_never_panic_and_never_keep_a_unit_busy(
        frames in prop::collection::vec((any_frame(), 0_u64..2_000_000), 1..120),
    ) {
        let mut pair = Network::connected_pair(ControlConfig::default());
        (0..50).for_each(|_| pair.send(0, 1).unwrap());
        let start = pair.now;
        let control = &mut pair.units[0].control;
        let mut now = start;
        for ((header, body), pause) in &frames {
            now = now.plus_nanos(*pause);
            control.handle_frame(now, header, body);
            control.handle_timeout(now);
            let mut left = 0;
            while control.poll_transmit(now).is_some() {
                left += 1;
                prop_assert!(left <= 35, "a turn is bounded");
            }
            while control.poll_event().is_some() {}
        }
        let end = now + Duration::from_secs(10);
        while let Some(at) = control.poll_timeout() {
            prop_assert!(at < end, "no unit waits for ever");
            now = now.max(at);
            control.handle_timeout(now);
            while control.poll_transmit(now).is_some() {}
        }
        prop_assert_eq!(control.pending(NodeId(1)), 0);
    }
}
