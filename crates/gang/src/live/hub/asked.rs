//! What front ends ask, and what they are answered.

use tokio::sync::mpsc;

use super::{Event, Hub};
use crate::live::clock::now;
use crate::live::link::Frame;
use crate::live::message::{Reply, Request};
use crate::live::precedence;
use crate::live::root::{ClientId, Read, post};
use crate::live::snapshot::Word;

impl Hub {
    pub(super) fn asked(&mut self, client: ClientId, request: Request, reply: mpsc::Sender<Frame>) {
        let refuse = |why: String| post(&reply, Frame::message(&Reply::Refused(why)));
        let Some(root) = &mut self.root else {
            return refuse(format!("this daemon is host {}: ask that of host 0", self.host));
        };
        match request {
            Request::Run { ranks, weight, program } => {
                root.submit(now(), (client, reply), (ranks, weight), program);
            }
            Request::Signal(signal) => {
                if let Some(job) = root.job_of(client) {
                    root.arrived(job);
                    self.signal(job, signal);
                }
            }
            Request::Resize(size) => {
                if let Some(job) = root.job_of(client) {
                    self.resize(job, size);
                }
            }
            Request::List => {
                post(&reply, Frame::message(&Reply::Listing(root.listing(now()))));
            }
            Request::Checkpoint { job, folder, end } => {
                match root.save(job, (client, reply.clone()), (folder, end)) {
                    Ok(true) => self.say(job, Word::Ask),
                    Ok(false) => {}
                    Err(why) => refuse(why),
                }
            }
            Request::Restore { folder, weight } => {
                let (events, most) = (self.events.clone(), root.most_saved());
                tokio::task::spawn_blocking(move || {
                    precedence::give_up();
                    let read = Read::from_folder((client, reply), folder, (weight, most));
                    let _ = events.send(Event::Read(Box::new(read)));
                });
            }
            Request::Slices => post(&reply, Frame::message(&Reply::Slices(root.slices()))),
            Request::Kill { job, .. } if !root.has(job) => refuse(format!("there is no job {job}")),
            Request::Kill { job, signal } => {
                match signal {
                    Some(signal) => self.signal(job, signal),
                    None => root.end(now(), job, Some("it was ended by its owner".into())),
                }
                post(&reply, Frame::message(&Reply::Done));
            }
            // Those that feed do so on a connection of their own.
            Request::Feed(_) => {}
        }
    }
}
