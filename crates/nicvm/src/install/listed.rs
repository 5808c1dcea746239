//! The list of the extensions that are installed on a node.

use midplane_simhw::id::ExtensionId;
use midplane_simhw::port::{Command, Completion, Status};
use midplane_simhw::region::Payload;

use super::{Context, Epoch, Hash, Installer};

/// One record of a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Listed {
    /// The extension's number.
    pub number: ExtensionId,
    /// The version that runs.
    pub epoch: Epoch,
    /// The hash of that version's module.
    pub hash: Hash,
    /// True if the extension is down: failed or withdrawn.
    pub is_down: bool,
    /// True if there is a previous version to return to.
    pub has_former: bool,
    /// Commands, control messages, frames, timeouts and failures, since the node started.
    pub counts: [u64; 5],
}

impl Listed {
    /// Bytes of a record.
    pub const BYTES: usize = 80;

    pub(super) fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.number.0;
        bytes[1] = u8::from(self.is_down) | u8::from(self.has_former) << 1;
        bytes[2..4].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[4..36].copy_from_slice(&self.hash.0);
        for (place, count) in bytes[40..].chunks_exact_mut(8).zip(self.counts) {
            place.copy_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    /// Decodes a record; any bytes decode to one.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(&bytes[4..36]);
        let mut counts = [0; 5];
        for (count, place) in counts.iter_mut().zip(bytes[40..].chunks_exact(8)) {
            *count = u64::from_le_bytes(place.try_into().expect("eight bytes"));
        }
        Self {
            number: ExtensionId(bytes[0]),
            epoch: Epoch(u16::from_le_bytes([bytes[2], bytes[3]])),
            hash: Hash(hash),
            is_down: bytes[1] & 1 != 0,
            has_former: bytes[1] & 2 != 0,
            counts,
        }
    }
}

impl Installer {
    pub(super) fn list(&self, nic: &mut Context<'_>, command: &Command) {
        let mut bytes = Vec::new();
        for (number, version) in &self.versions {
            let counts = nic.counters(*number);
            let listed = Listed {
                number: *number,
                epoch: version.epoch,
                hash: version.hash,
                is_down: version.is_down,
                has_former: version.former.is_some(),
                counts: [
                    counts.commands,
                    counts.controls,
                    counts.frames,
                    counts.timeouts,
                    counts.traps,
                ],
            };
            bytes.extend(listed.emit());
        }
        let length = bytes.len().min(command.region.length as usize);
        let to = command.region.part(0, length as u32).expect("no longer than it");
        if length > 0 && nic.write(to, Payload::from(&bytes[..length])).is_err() {
            nic.refuse(command, Status::Region);
            return;
        }
        let args = [self.versions.len() as u64, 0, 0, 0];
        let done =
            Completion { length: length as u64, args, ..Completion::of(command, Status::Done) };
        nic.complete(command.region.port, &done);
    }
}
