//! Any packets from processes of one's job: messages neither panic nor pass the memory that they may keep.

use crate::hostile;

pub(crate) fn run(bytes: &[u8]) {
    hostile::packets::run(&hostile::packets::steps(bytes));
}
