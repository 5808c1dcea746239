//! What nodes wrote and read, as they noted it, and the history that comes of it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use midplane_simhw::id::NodeId;
use midplane_warp::memory::check::{Event, History};
use midplane_warp::memory::{Level, Location, Origin};

/// What a node did.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Note {
    /// A write, once the node sees it.
    Wrote { location: Location, value: u64 },
    /// A read, and whose value it returned.
    Read { location: Location, seen: Option<(u64, Origin)> },
}

/// The notes of all nodes; no two writes have one value.
#[derive(Debug)]
pub(crate) struct Notebook {
    level: Level,
    pages: Mutex<BTreeMap<NodeId, Page>>,
}

#[derive(Clone, Debug, Default)]
struct Page {
    notes: Vec<Note>,
    /// A write that the node has begun and not seen the end of.
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

    /// A write begins.
    pub(crate) fn begin(&self, node: NodeId, location: Location, value: u64) {
        self.on_page(node, |page| page.under_way = Some(Note::Wrote { location, value }));
    }

    /// It is seen.
    pub(crate) fn end(&self, node: NodeId) {
        self.on_page(node, |page| page.notes.extend(page.under_way.take()));
    }

    /// Writes that were seen by their writers.
    pub(crate) fn writes(&self) -> usize {
        let is_write = |note: &&Note| matches!(note, Note::Wrote { .. });
        self.pages.lock().unwrap().values().map(|p| p.notes.iter().filter(is_write).count()).sum()
    }

    /// Reads of what another node wrote.
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

    /// The history. A slow or a PRAM write's place is its number among its writer's; that of a
    /// coherent one is known if anybody has read it, and one that nobody has read says nothing. A
    /// write that its writer did not live to see comes last of what it did.
    pub(crate) fn history(&self) -> History {
        let pages = self.pages.lock().unwrap().clone();
        let notes = |page: &Page| page.notes.iter().chain(&page.under_way).copied().collect();
        let pages: BTreeMap<NodeId, Vec<Note>> =
            pages.iter().map(|(node, page)| (*node, notes(page))).collect();
        let mut places = BTreeMap::new();
        for note in pages.values().flatten() {
            if let Note::Read { seen: Some((value, origin)), .. } = note {
                let known = places.insert(*value, *origin);
                assert!(known.is_none_or(|known| known == *origin), "two places of one write");
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
                    assert_eq!(*seen, origin, "a read names another place than the write's");
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

/// A writer's writes so far, to each location or in all.
#[derive(Default)]
struct Counts(BTreeMap<Option<Location>, u64>);

impl Counts {
    fn next(&mut self, of: Option<Location>) -> u64 {
        let count = self.0.entry(of).or_default();
        *count += 1;
        *count
    }
}
