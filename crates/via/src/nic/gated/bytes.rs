//! The bytes of descriptors, which lie in segments.

use midplane_simhw::region::Payload;

use crate::descriptor::Descriptor;

/// Calls `part` for each segment of a descriptor, with its offset in the message.
pub(super) fn gather(descriptor: &Descriptor, mut part: impl FnMut(usize, Payload<'_>)) {
    let mut at = 0;
    for segment in &descriptor.segments {
        let bytes = segment.memory().view(segment.offset(), segment.len());
        part(at, bytes.expect("a segment is within its memory"));
        at += segment.len();
    }
}

/// Writes a payload to its place in a descriptor that has room for it.
pub(super) fn scatter(descriptor: &Descriptor, offset: usize, payload: Payload<'_>) {
    let (mut before, end) = (0, offset + payload.len());
    for segment in &descriptor.segments {
        let (start, stop) = (offset.max(before), end.min(before + segment.len()));
        if start < stop {
            let part = payload.slice(start - offset..stop - offset).expect("a part of it");
            let stored = segment.memory().store(segment.offset() + start - before, part);
            stored.expect("a segment is within its memory");
        }
        before += segment.len();
    }
}
