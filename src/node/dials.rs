//! The places that a node has dialed, and the outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

use midplane_simhw::lock::lock;
use midplane_via::session::{Attempt, Attempts, Session};

use crate::member::Target;

/// Most places whose last dial is kept.
const MOST: usize = 1_024;

/// The last dials of a node, by place.
#[derive(Debug, Default)]
pub(super) struct Dials(Mutex<BTreeMap<Target, Dial>>);

/// The last dial of a place.
#[derive(Debug)]
struct Dial {
    /// Number of dials of the place so far.
    count: u32,
    last: Last,
    /// True if the dial before found that the keys do not fit; this counts until the last dial was answered.
    had_other_key: bool,
}

impl Dial {
    /// Returns whether the node there has another key, or one of the two nodes has none.
    fn has_other_key(&self) -> bool {
        let Last::Sent(attempts) = &self.last else { return false };
        let both = [attempts.udp(), attempts.tcp()];
        let is_found = both.contains(&Attempt::KeyMismatch);
        let is_open = self.had_other_key && both.contains(&Attempt::UnderWay);
        !both.contains(&Attempt::Answered) && (is_found || is_open)
    }

    /// Returns why the place did not answer; `None` if it did.
    fn error(&self) -> Option<String> {
        match &self.last {
            Last::Refused(why) => Some(why.clone()),
            Last::Sent(_) if self.has_other_key() => Some(Attempt::KeyMismatch.to_string()),
            Last::Sent(attempts) => failed(&attempts.udp(), &attempts.tcp()),
            Last::Attached => None,
        }
    }
}

#[derive(Debug)]
enum Last {
    /// The system refused the dial.
    Refused(String),
    /// The dial was sent to an address.
    Sent(Arc<Attempts>),
    /// Shared memory was attached.
    Attached,
}

impl Dials {
    /// Records a dial that has begun or failed.
    pub(super) fn on_dialed(&self, target: Target, dialed: Result<&Arc<Session>, &io::Error>) {
        let last = match dialed {
            Err(error) => Last::Refused(error.to_string()),
            Ok(session) => session.attempts().cloned().map_or(Last::Attached, Last::Sent),
        };
        let mut all = lock(&self.0);
        if all.len() >= MOST && !all.contains_key(&target) {
            all.pop_first();
        }
        let count = all.get(&target).map_or(0, |dial| dial.count).saturating_add(1);
        let had_other_key = all.get(&target).is_some_and(Dial::has_other_key);
        all.insert(target, Dial { count, last, had_other_key });
    }

    /// Forgets the places that did not answer and are not among these.
    pub(super) fn forget_others(&self, places: &BTreeSet<Target>) {
        lock(&self.0).retain(|target, dial| places.contains(target) || dial.error().is_none());
    }

    /// Returns why the node with this number could not be reached through shared memory; `None` if that did not fail.
    pub(super) fn local_error(&self, id: u64) -> Option<String> {
        match &lock(&self.0).get(&Target::Local(id))?.last {
            Last::Refused(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Returns how often a place was dialed.
    pub(super) fn count(&self, target: Target) -> u32 {
        lock(&self.0).get(&target).map_or(0, |dial| dial.count)
    }

    /// Returns whether the node at some place has another key, or one of the two nodes has none.
    pub(super) fn has_other_keys(&self) -> bool {
        lock(&self.0).values().any(Dial::has_other_key)
    }

    /// Returns the places that did not answer the last dial, with the number of dials and the last error.
    pub(super) fn unanswered(&self) -> Vec<(Target, u32, String)> {
        let all = lock(&self.0);
        let unanswered =
            all.iter().filter_map(|(target, dial)| Some((*target, dial.count, dial.error()?)));
        unanswered.collect()
    }
}

/// Returns why neither transport has reached a peer; `None` if one has.
fn failed(udp: &Attempt, tcp: &Attempt) -> Option<String> {
    if [udp, tcp].contains(&&Attempt::Answered) {
        return None;
    }
    let tried = [("udp", udp), ("tcp", tcp)].into_iter();
    let tried = tried.filter(|(_, attempt)| **attempt != Attempt::None);
    let tried: Vec<_> = tried.map(|(name, attempt)| format!("{name}: {attempt}")).collect();
    Some(format!("{}; start a node there, or let its port pass the firewall", tried.join("; ")))
}
