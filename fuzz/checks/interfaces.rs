//! Any data frames from a peer that has connected: interfaces neither panic nor touch or show memory that is
//! not open.

use crate::hostile;

pub(crate) fn run(bytes: &[u8]) {
    let verdict = hostile::session::run(bytes);
    assert!(!verdict.touched, "memory that is not open was written");
    assert!(!verdict.leaked, "memory that is not open was read");
    assert_eq!(verdict.traps, 0);
}
