//! Every state of an interface, with every event that its host or the other end can cause: the outcome, and the state
//! after it.

use std::time::Duration;

use crate::pair;
use crate::pair::{CLIENT, End, SERVER, Setting, address, name, pause, world};
use midplane_simhw::host::Host as _;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::{Reliability, ViAttributes, ViState};
use midplane_via::descriptor::Descriptor;
use midplane_via::nic::{ConnectFailed, WorkQueue};
use midplane_via::outcome::AsyncError;

const STATES: [ViState; 4] =
    [ViState::Idle, ViState::ConnectPending, ViState::Connected, ViState::Error];

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    PostReceive,
    PostSend,
    Connect,
    ConnectPeer,
    Accept,
    Disconnect,
    Destroy,
    PeerDisconnects,
    PeerSends,
    PeerDies,
}

const EVENTS: [Event; 10] = [
    Event::PostReceive,
    Event::PostSend,
    Event::Connect,
    Event::ConnectPeer,
    Event::Accept,
    Event::Disconnect,
    Event::Destroy,
    Event::PeerDisconnects,
    Event::PeerSends,
    Event::PeerDies,
];

const LEVELS: [Reliability; 3] =
    [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception];

fn attributes(reliability: Reliability) -> ViAttributes {
    ViAttributes { reliability, ..ViAttributes::default() }
}

/// Milliseconds after which the other end causes its event.
const ACTS_MS: u64 = 200;

/// Plays the other end: connects if the state requires a connection, ends that for the error state, and causes the
/// event.
async fn other(host: SimHost, level: Reliability, state: ViState, event: Event) {
    let mut end = End::new(host.clone(), attributes(level), 4096).await;
    if matches!(state, ViState::Connected | ViState::Error) {
        end.serve().await;
    }
    if state == ViState::Error {
        pause(&host, Duration::from_millis(20)).await;
        end.nic.disconnect(end.vi).await.unwrap();
    }
    if event == Event::Accept {
        // Requests a connection, so that there is one to accept.
        let mut requester = End::new(host.clone(), attributes(level), 64).await;
        pause(&host, Duration::from_millis(100)).await;
        let to = address(CLIENT, "asked");
        let _ = requester.nic.connect(requester.vi, to, Some(Duration::from_millis(500))).await;
    }
    while host.now() < pair::at(ACTS_MS * 1_000_000) {
        pause(&host, Duration::from_millis(1)).await;
    }
    match event {
        Event::PeerDisconnects => end.nic.disconnect(end.vi).await.unwrap(),
        Event::PeerSends => {
            let segment = end.memory.segment(0, 16).unwrap();
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
        }
        _ => {}
    }
    pause(&host, Duration::from_secs(5)).await;
}

async fn in_state(host: SimHost, level: Reliability, state: ViState) -> End {
    let mut end = End::new(host, attributes(level), 4096).await;
    match state {
        ViState::Idle => {}
        ViState::ConnectPending => {
            let nobody = address(SERVER, "nobody");
            let _ticket = end.nic.connect_peer(end.vi, nobody, name("ours"), None).unwrap();
        }
        ViState::Connected | ViState::Error => end.connect().await,
    }
    pause(&end.host, Duration::from_millis(60)).await;
    assert_eq!(end.nic.query_vi(end.vi).await.unwrap().0, state);
    end
}

/// Returns the outcome of a queue's next descriptor.
async fn ended(end: &mut End, queue: WorkQueue) -> String {
    pause(&end.host, Duration::from_millis(20)).await;
    match end.nic.done(end.vi, queue) {
        Ok(Some(done)) => format!("{:?}", done.outcome),
        Ok(None) => "queued".into(),
        Err(error) => format!("{error:?}"),
    }
}

fn failure<T>(result: Result<T, ConnectFailed>) -> String {
    match result {
        Ok(_) => "Ok".into(),
        Err(error) => format!("{error:?}"),
    }
}

async fn apply(end: &mut End, event: Event) -> String {
    let segment = end.memory.segment(0, 64).unwrap();
    match event {
        Event::PostReceive => {
            end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
            ended(end, WorkQueue::Receive).await
        }
        Event::PostSend => {
            end.nic.post_send(end.vi, Descriptor::of(segment)).unwrap();
            ended(end, WorkQueue::Send).await
        }
        Event::Connect => {
            let nobody = address(SERVER, "nobody");
            failure(end.nic.connect(end.vi, nobody, Some(Duration::from_millis(5))).await)
        }
        Event::ConnectPeer => {
            let nobody = address(SERVER, "nobody");
            let ticket = end.nic.connect_peer(end.vi, nobody, name("other"), None).unwrap();
            pause(&end.host, Duration::from_millis(5)).await;
            failure(end.nic.connected(&ticket).map(|made| assert!(made.is_none())))
        }
        Event::Accept => {
            let request = end.nic.connect_wait(name("asked"), None).await.unwrap();
            failure(end.nic.accept(&request, end.vi).await)
        }
        Event::Disconnect => format!("{:?}", end.nic.disconnect(end.vi).await),
        Event::Destroy => format!("{:?}", end.nic.destroy_vi(end.vi).await),
        Event::PeerDisconnects | Event::PeerSends | Event::PeerDies => {
            end.nic.post_receive(end.vi, Descriptor::of(segment)).unwrap();
            while end.host.now() < pair::at((ACTS_MS + 1_500) * 1_000_000) {
                pause(&end.host, Duration::from_millis(10)).await;
            }
            let lost = std::iter::from_fn(|| end.nic.next_error())
                .filter(|(_, error)| *error == AsyncError::ConnectionLost)
                .count();
            format!("{}, lost {lost}", ended(end, WorkQueue::Receive).await)
        }
    }
}

fn outcome(level: Reliability, state: ViState, event: Event) -> String {
    let mut world = world(Setting::default());
    let (ours, theirs) = (world.host(CLIENT), world.host(SERVER));
    world.spawn(SERVER, other(theirs, level, state, event));
    let place = std::sync::Arc::new(std::sync::Mutex::new(None));
    let result = std::sync::Arc::clone(&place);
    world.spawn(CLIENT, async move {
        let mut end = in_state(ours, level, state).await;
        let outcome = apply(&mut end, event).await;
        let after = match end.nic.query_vi(end.vi).await {
            Ok((state, _)) => format!("{state:?}"),
            Err(_) => "gone".into(),
        };
        *result.lock().unwrap() = Some(format!("{outcome} -> {after}"));
        pause(&end.host, Duration::from_secs(5)).await;
    });
    world.run_until(pair::at(ACTS_MS * 1_000_000));
    if event == Event::PeerDies {
        world.crash(SERVER);
    }
    world.run_until(pair::at(4_000_000_000));
    place.lock().unwrap().take().expect("the client ends")
}

/// The outcomes. Idle and pending interfaces keep posted receives, and flush posted sends. In the error state, all
/// descriptors are flushed, and a disconnect makes the interface idle. More lenient than the architecture: an interface
/// in the error state may be destroyed without being disconnected first.
const TABLE: &[(ViState, Event, &str)] = &[
    (ViState::Idle, Event::PostReceive, "queued -> Idle"),
    (ViState::Idle, Event::PostSend, "Err(Flushed) -> Idle"),
    (ViState::Idle, Event::Connect, "Connect(NoMatch) -> Idle"),
    (ViState::Idle, Event::ConnectPeer, "Ok -> ConnectPending"),
    (ViState::Idle, Event::Accept, "Ok -> Connected"),
    (ViState::Idle, Event::Disconnect, "Ok(()) -> Idle"),
    (ViState::Idle, Event::Destroy, "Ok(()) -> gone"),
    (ViState::Idle, Event::PeerDisconnects, "queued, lost 0 -> Idle"),
    (ViState::Idle, Event::PeerSends, "queued, lost 0 -> Idle"),
    (ViState::Idle, Event::PeerDies, "queued, lost 0 -> Idle"),
    (ViState::ConnectPending, Event::PostReceive, "queued -> ConnectPending"),
    (ViState::ConnectPending, Event::PostSend, "Err(Flushed) -> ConnectPending"),
    (ViState::ConnectPending, Event::Connect, "Connect(InvalidState) -> ConnectPending"),
    (ViState::ConnectPending, Event::ConnectPeer, "Connect(InvalidState) -> ConnectPending"),
    (ViState::ConnectPending, Event::Accept, "Connect(InvalidState) -> ConnectPending"),
    (ViState::ConnectPending, Event::Disconnect, "Ok(()) -> Idle"),
    (ViState::ConnectPending, Event::Destroy, "Err(InUse) -> ConnectPending"),
    (ViState::ConnectPending, Event::PeerDisconnects, "queued, lost 0 -> ConnectPending"),
    (ViState::ConnectPending, Event::PeerSends, "queued, lost 0 -> ConnectPending"),
    (ViState::ConnectPending, Event::PeerDies, "queued, lost 0 -> ConnectPending"),
    (ViState::Connected, Event::PostReceive, "queued -> Connected"),
    (ViState::Connected, Event::PostSend, "Err(RemoteDescriptor) -> Error"),
    (ViState::Connected, Event::Connect, "Connect(InvalidState) -> Connected"),
    (ViState::Connected, Event::ConnectPeer, "Connect(InvalidState) -> Connected"),
    (ViState::Connected, Event::Accept, "Connect(InvalidState) -> Connected"),
    (ViState::Connected, Event::Disconnect, "Ok(()) -> Idle"),
    (ViState::Connected, Event::Destroy, "Err(InUse) -> Connected"),
    (ViState::Connected, Event::PeerDisconnects, "Err(Flushed), lost 1 -> Error"),
    (ViState::Connected, Event::PeerSends, "Ok(()), lost 0 -> Connected"),
    (ViState::Connected, Event::PeerDies, "Err(Flushed), lost 1 -> Error"),
    (ViState::Error, Event::PostReceive, "Err(Flushed) -> Error"),
    (ViState::Error, Event::PostSend, "Err(Flushed) -> Error"),
    (ViState::Error, Event::Connect, "Connect(InvalidState) -> Error"),
    (ViState::Error, Event::ConnectPeer, "Connect(InvalidState) -> Error"),
    (ViState::Error, Event::Accept, "Connect(InvalidState) -> Error"),
    (ViState::Error, Event::Disconnect, "Ok(()) -> Idle"),
    (ViState::Error, Event::Destroy, "Ok(()) -> gone"),
    (ViState::Error, Event::PeerDisconnects, "Err(Flushed), lost 1 -> Error"),
    (ViState::Error, Event::PeerSends, "Err(Flushed), lost 1 -> Error"),
    (ViState::Error, Event::PeerDies, "Err(Flushed), lost 1 -> Error"),
];

/// The outcomes that differ without reliability: a send completes once it was sent, even if it is lost.
const UNRELIABLE: &[(ViState, Event, &str)] =
    &[(ViState::Connected, Event::PostSend, "Ok(()) -> Connected")];

fn expected(level: Reliability, state: ViState, event: Event) -> Option<&'static str> {
    let first = if level.is_reliable() { &[] } else { UNRELIABLE };
    let found = first.iter().chain(TABLE).find(|(s, e, _)| (*s, *e) == (state, event));
    found.map(|(.., expected)| *expected)
}

#[test]
fn every_state_meets_every_event_at_every_level() {
    let mut wrong = String::new();
    for level in LEVELS {
        for (state, event) in STATES.iter().flat_map(|s| EVENTS.map(|event| (*s, event))) {
            let found = outcome(level, state, event);
            if expected(level, state, event) != Some(&found) {
                wrong +=
                    &format!("{level:?}: (ViState::{state:?}, Event::{event:?}, {found:?}),\n");
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}
