//! Atomic operations: started by this endpoint on a peer's memory, and performed here for peers, one after another.

use std::ffi::c_int;

use midplane_simhw::shm::Corrupt;

use super::arrivals::Arrival;
use super::{Domain, Endpoint, Requested, State};
use crate::abi::constants::{
    ATOMIC, EACCES, EAGAIN, EINVAL, EMSGSIZE, EOPNOTSUPP, READ, REMOTE_READ, REMOTE_WRITE, WRITE,
};
use crate::atomic::{Datatype, Form, MAX_BYTES, Operation};
use crate::completion::{Class, Entry};
use crate::memory::Buffer;
use crate::peer::{Content, Departure, End, Finish};
use crate::record::{AtomicWord, FETCH, Head, Kind};

/// An atomic operation on a peer's region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    /// The peer's address in the address vector.
    pub(crate) to: u64,
    pub(crate) key: u64,
    pub(crate) address: u64,
    pub(crate) operation: Operation,
    pub(crate) datatype: Datatype,
    pub(crate) form: Form,
    /// Number of elements of the region.
    pub(crate) count: usize,
    pub(crate) operand: Buffer,
    pub(crate) comparand: Buffer,
    /// Memory for the previous values.
    pub(crate) result: Buffer,
    pub(crate) context: usize,
    /// True if the operation has an entry in its queue.
    pub(crate) reports: bool,
}

impl Atomic {
    /// Returns the class in which the operation completes.
    pub(crate) const fn class(form: Form) -> Class {
        if matches!(form, Form::Base) { Class::Write } else { Class::Read }
    }

    /// Checks an operation; returns the bytes of memory that it changes.
    fn check(&self) -> Result<usize, c_int> {
        if !self.operation.fits(self.datatype, self.form) {
            return Err(EOPNOTSUPP);
        }
        let bytes = self.count.checked_mul(self.datatype.bytes()).ok_or(EMSGSIZE)?;
        if bytes > MAX_BYTES {
            return Err(EMSGSIZE);
        }
        let has = |buffer: &Buffer, is_used: bool| !is_used || buffer.len() == bytes;
        let is_whole = bytes > 0
            && has(&self.operand, self.operation != Operation::Read)
            && has(&self.comparand, self.form == Form::Compare)
            && has(&self.result, self.form != Form::Base);
        if is_whole { Ok(bytes) } else { Err(EINVAL) }
    }

    fn finish(&self) -> Finish {
        let class = Self::class(self.form);
        let flag = if class == Class::Write { WRITE } else { READ };
        let length = if class == Class::Write { 0 } else { self.result.len() };
        let entry = Entry { length, ..Entry::of(self.context, ATOMIC | flag) };
        Finish { class, reports: self.reports, entry }
    }

    /// Returns a copy of the operands, followed by the comparands.
    fn operands(&self) -> Box<[u8]> {
        let mut bytes = match self.operation {
            Operation::Read => Vec::new(),
            _ => self.operand.to_vec(),
        };
        if self.form == Form::Compare {
            bytes.extend(self.comparand.to_vec());
        }
        bytes.into()
    }
}

impl Endpoint {
    /// Starts an atomic operation. Its operands may change as soon as the call returns.
    ///
    /// # Errors
    /// A positive error of libfabric; the operation then has no completion. After `EAGAIN`, repeat it after some
    /// progress.
    pub(crate) fn post_atomic(
        &mut self,
        atomic: &Atomic,
        domain: &mut Domain<'_>,
    ) -> Result<(), c_int> {
        atomic.check()?;
        let peer = self.admit(atomic.to, true)?;
        let operands = atomic.operands();
        let (flags, handle, end) = if atomic.form == Form::Base {
            (0, 0, End::Confirm(atomic.finish()))
        } else {
            let requested = Requested::Read(atomic.result, atomic.finish());
            let entry = self.state.requested.vacant_entry();
            let handle = u32::try_from(entry.key()).map_err(|_| EAGAIN)?;
            entry.insert((peer, requested));
            (FETCH, handle, End::Nothing)
        };
        let word = AtomicWord {
            operation: atomic.operation as u8,
            datatype: atomic.datatype as u8,
            count: u16::try_from(atomic.count).map_err(|_| EMSGSIZE)?,
            handle,
        };
        let head = Head::new(Kind::Atomic, flags, operands.len(), atomic.key);
        let head = head.with(atomic.address).with(word.word());
        let departure = Departure::new(head, Content::Copied(operands), end);
        self.state.peers[peer].requests += 1;
        self.depart(peer, departure, domain);
        Ok(())
    }
}

impl State {
    /// Performs an atomic operation for a peer.
    pub(super) fn on_atomic(
        &mut self,
        arrival: &Arrival<'_>,
        domain: &mut Domain<'_>,
    ) -> Result<(), Corrupt> {
        let [address, word] = arrival.prefix(2)?;
        let AtomicWord { operation, datatype, count, handle } = AtomicWord::of(word);
        let operation = Operation::of(operation.into()).ok_or(Corrupt)?;
        let datatype = Datatype::of(datatype.into()).ok_or(Corrupt)?;
        let bytes = usize::from(count) * datatype.bytes();
        let fetches = arrival.flags & FETCH != 0;
        let form = match operation {
            Operation::CompareAndSwap => Form::Compare,
            _ if fetches => Form::Fetch,
            _ => Form::Base,
        };
        let is_whole = operation.operand_bytes(bytes) == arrival.length
            && arrival.bytes == 16 + arrival.length
            && self.peers[arrival.peer].inbound.is_none();
        let is_valid = bytes > 0 && bytes <= MAX_BYTES && operation.fits(datatype, form);
        if !is_whole || !is_valid || (form == Form::Compare && !fetches) {
            return Err(Corrupt);
        }
        let mut operands = [0; 2 * MAX_BYTES];
        let operands = &mut operands[..arrival.length];
        arrival.from.read(16, operands);
        let key = arrival.second;
        let mut memory = Some(Buffer::default());
        if fetches {
            memory = domain.regions.readable(key, address, bytes);
        }
        if operation != Operation::Read && memory.is_some() {
            memory = domain.regions.writable(key, address, bytes);
        }
        let old = memory.map(|memory| {
            let old = if fetches { memory.to_vec() } else { Vec::new() };
            if operation != Operation::Read {
                memory.fill(0, bytes, |_, memory| operation.apply(datatype, memory, operands));
            }
            old
        });
        if old.is_some() {
            let (class, flag) = if fetches {
                (Class::RemoteRead, REMOTE_READ)
            } else {
                (Class::RemoteWrite, REMOTE_WRITE)
            };
            let entry = Entry::of(0, ATOMIC | flag);
            self.serve(key, class, false, entry, domain);
        }
        self.answer_atomic(arrival.peer, old, fetches.then_some(handle))
    }

    /// Answers with the previous values, a confirmation, or, if `old` is `None`, an error.
    fn answer_atomic(
        &mut self,
        number: usize,
        old: Option<Vec<u8>>,
        handle: Option<u32>,
    ) -> Result<(), Corrupt> {
        let peer = &mut self.peers[number];
        match (old, handle) {
            (Some(old), Some(handle)) => {
                let head = Head::new(Kind::Data, 0, old.len(), handle.into());
                let content = Content::Copied(old.into());
                peer.answer_with(Departure::new(head, content, End::Answer));
            }
            (Some(_), None) => peer.confirm(),
            (None, Some(handle)) => peer.fail_read(handle.into(), EACCES),
            (None, None) => peer.refuse(EACCES),
        }
        let is_flooded = peer.is_flooded();
        self.list(number);
        if is_flooded { Err(Corrupt) } else { Ok(()) }
    }
}
