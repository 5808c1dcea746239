//! Records of the nodes' writes and reads, and the history made from them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use midplane_simhw::id::NodeId;
use midplane_warp::memory::check::{Event, History};
use midplane_warp::memory::{Level, Location, Origin};

/// A recorded access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// A write, recorded when the node itself sees it.
    Wrote { location: Location, value: u64 },
    /// A read, with the value that it returned and that value's origin.
    Read { location: Location, seen: Option<(u64, Origin)> },
}

/// The records of all nodes. No two writes have the same value.
#[derive(Debug)]
pub(crate) struct Notebook {
    level: Level,
    pages: Mutex<BTreeMap<NodeId, Page>>,
}

#[derive(Clone, Debug, Default)]
struct Page {
    notes: Vec<Note>,
    /// The write that the node has begun but not seen.
    under_way: Option<Note>,
}

impl Notebook {
    pub(crate) const fn new(level: Level) -> Self {
        Self { level, pages: Mutex::new(BTreeMap::new()) }
    }

    fn on_page<T>(&self, node: NodeId, act: impl FnOnce(&mut Page) -> T) -> T {
        act(self.pages.lock().unwrap().entry(node).or_default())
    }

    pub(crate) fn note(&self, node: NodeId, note: Note) {
        self.on_page(node, |page| page.notes.push(note));
    }

    /// Records that a write begins.
    pub(crate) fn begin(&self, node: NodeId, location: Location, value: u64) {
        self.on_page(node, |page| page.under_way = Some(Note::Wrote { location, value }));
    }

    /// Records that the writer sees its write.
    pub(crate) fn end(&self, node: NodeId) {
        self.on_page(node, |page| page.notes.extend(page.under_way.take()));
    }

    /// Returns the number of writes that their writers have seen.
    pub(crate) fn writes(&self) -> usize {
        let is_write = |note: &&Note| matches!(note, Note::Wrote { .. });
        self.pages.lock().unwrap().values().map(|p| p.notes.iter().filter(is_write).count()).sum()
    }

    /// Returns the number of reads that returned another node's write.
    pub(crate) fn foreign_reads(&self) -> usize {
        let pages = self.pages.lock().unwrap();
        let is_foreign = |node: NodeId, note: &Note| match note {
            Note::Read { seen: Some((_, origin)), .. } => origin.writer != node,
            _ => false,
        };
        let of = |(node, page): (&NodeId, &Page)| {
            page.notes.iter().filter(|note| is_foreign(*node, note)).count()
        };
        pages.iter().map(of).sum()
    }

    /// Makes the history. The number of a slow or a PRAM write is its count among its writer's. The
    /// number of a coherent write is known if a node has read it; an unread one is left out. A
    /// write that its writer did not live to see comes last.
    pub(crate) fn history(&self) -> History {
        let pages = self.pages.lock().unwrap().clone();
        let notes = |page: &Page| page.notes.iter().chain(&page.under_way).copied().collect();
        let pages: BTreeMap<NodeId, Vec<Note>> =
            pages.iter().map(|(node, page)| (*node, notes(page))).collect();
        let mut places = BTreeMap::new();
        for note in pages.values().flatten() {
            if let Note::Read { seen: Some((value, origin)), .. } = note {
                let known = places.insert(*value, *origin);
                assert!(
                    known.is_none_or(|known| known == *origin),
                    "two reads name different numbers for one write"
                );
            }
        }
        let event = |counts: &mut Counts, node: NodeId, note: Note| match note {
            Note::Read { location, seen } => {
                Some(Event::Read { location, origin: seen.map(|(_, origin)| origin) })
            }
            Note::Wrote { location, value } => {
                let origin = match self.level {
                    Level::Slow => Some(counts.next(Some(location))),
                    Level::Pram => Some(counts.next(None)),
                    Level::Coherent => None,
                };
                let origin = origin.map(|order| Origin { writer: node, level: self.level, order });
                if let (Some(seen), Some(origin)) = (places.get(&value), origin) {
                    assert_eq!(*seen, origin, "a read names another number than the write's");
                }
                let origin = origin.or_else(|| places.get(&value).copied())?;
                Some(Event::Write { location, origin })
            }
        };
        let history = |(node, notes): (NodeId, Vec<Note>)| {
            let mut counts = Counts::default();
            (node, notes.into_iter().filter_map(|note| event(&mut counts, node, note)).collect())
        };
        pages.into_iter().map(history).collect()
    }
}

/// Counts a writer's writes so far, to each location or in all.
#[derive(Default)]
struct Counts(BTreeMap<Option<Location>, u64>);

impl Counts {
    fn next(&mut self, of: Option<Location>) -> u64 {
        let count = self.0.entry(of).or_default();
        *count += 1;
        *count
    }
}
