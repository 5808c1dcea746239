//! Completion queues and counters.

use std::collections::VecDeque;
use std::ffi::c_int;

use slab::Slab;

use crate::abi::constants::ADDR_UNSPEC;

/// The completion of one operation, or an event of a receive buffer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) length: usize,
    /// Address of the received bytes.
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: u64,
    /// A positive error of libfabric; 0 if the operation succeeded.
    pub(crate) error: c_int,
    /// Bytes of a message that the buffer had no space for.
    pub(crate) excess: usize,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) entries: VecDeque<Entry>,
    /// True if a thread that waits for entries must return without one.
    pub(crate) is_signalled: bool,
    /// Entries at which the queue is full: no messages are received until the caller takes some. Other operations
    /// of peers continue.
    pub(crate) capacity: usize,
    /// The waiter of the domain whose descriptor the caller uses, if there is one.
    pub(crate) waiter: Option<usize>,
}

/// A counter of completed operations.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) value: u64,
    pub(crate) errors: u64,
}

/// All completion queues and counters of a domain.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    pub(crate) queues: Slab<Queue>,
    pub(crate) counters: Slab<Counter>,
    /// True if an operation has completed since this was last reset.
    pub(crate) has_changed: bool,
}

impl Completions {
    /// Adds one to a counter.
    pub(crate) fn count(&mut self, counter: usize) {
        if let Some(counter) = self.counters.get_mut(counter) {
            counter.value += 1;
            self.has_changed = true;
        }
    }
}

/// The kinds of operations that complete in different queues and counters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Class {
    Send,
    Receive,
    Read,
    Write,
    RemoteRead,
    RemoteWrite,
}

impl Class {
    pub(crate) const ALL: [Self; 6] =
        [Self::Send, Self::Receive, Self::Read, Self::Write, Self::RemoteRead, Self::RemoteWrite];
}

/// The queue in which an endpoint's operations of one direction complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueBinding {
    pub(crate) queue: usize,
    /// True if only operations that request an entry have one.
    pub(crate) is_selective: bool,
}

/// The queues and counters that an endpoint is bound to.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    pub(crate) transmit: Option<QueueBinding>,
    pub(crate) receive: Option<QueueBinding>,
    pub(crate) counters: [Option<usize>; Class::ALL.len()],
}

impl Bindings {
    const fn queue(&self, class: Class) -> Option<QueueBinding> {
        match class {
            Class::Send | Class::Read | Class::Write => self.transmit,
            Class::Receive | Class::RemoteRead | Class::RemoteWrite => self.receive,
        }
    }

    /// Returns whether operations of an endpoint complete in a queue.
    pub(crate) fn has_queue(&self, queue: usize) -> bool {
        [self.transmit, self.receive].into_iter().flatten().any(|binding| binding.queue == queue)
    }

    /// Returns whether an operation has an entry; `asks` is true if its flags request one.
    pub(crate) fn reports(&self, class: Class, asks: bool) -> bool {
        self.queue(class).is_some_and(|binding| asks || !binding.is_selective)
    }

    /// Completes an operation: counts it, and adds its entry if `reports` is true or it failed.
    #[inline]
    pub(crate) fn complete(
        &self,
        out: &mut Completions,
        class: Class,
        reports: bool,
        entry: Entry,
    ) {
        out.has_changed = true;
        let counter = self.counters[class as usize].and_then(|key| out.counters.get_mut(key));
        if let Some(counter) = counter {
            if entry.error == 0 {
                counter.value += 1;
            } else {
                counter.errors += 1;
            }
        }
        if reports || entry.error != 0 {
            self.notify(out, class, entry);
        }
    }

    /// Adds an entry that completes no operation, such as the result of a peek: no counter counts it.
    #[inline]
    pub(crate) fn notify(&self, out: &mut Completions, class: Class, entry: Entry) {
        if let Some(binding) = self.queue(class)
            && let Some(queue) = out.queues.get_mut(binding.queue)
        {
            out.has_changed = true;
            queue.entries.push_back(entry);
        }
    }

    /// Returns whether the queue of received messages is full.
    pub(crate) fn is_full(&self, out: &Completions) -> bool {
        self.receive
            .and_then(|binding| out.queues.get(binding.queue))
            .is_some_and(|queue| queue.entries.len() >= queue.capacity)
    }
}

impl Entry {
    /// Creates the entry of an operation without a source.
    pub(crate) const fn of(context: usize, flags: u64) -> Self {
        Self {
            context,
            flags,
            length: 0,
            buffer: 0,
            data: 0,
            tag: 0,
            source: ADDR_UNSPEC,
            error: 0,
            excess: 0,
        }
    }

    pub(crate) const fn failed(self, error: c_int) -> Self {
        Self { error, ..self }
    }
}
