//! Any bytes are one frame, or none.

use midplane_simhw::frame::{HEADER_BYTES, Header};

pub(crate) fn run(bytes: &[u8]) {
    if let Ok((header, payload)) = Header::parse(bytes) {
        assert_eq!(&header.emit()[..], &bytes[..HEADER_BYTES]);
        assert_eq!(payload, &bytes[HEADER_BYTES..]);
    }
}
