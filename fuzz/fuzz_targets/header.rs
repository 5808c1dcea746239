//! Any bytes are one frame, or none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use midplane_simhw::frame::{HEADER_BYTES, Header};

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, payload)) = Header::parse(bytes) {
        assert_eq!(&header.emit()[..], &bytes[..HEADER_BYTES]);
        assert_eq!(payload, &bytes[HEADER_BYTES..]);
    }
});
