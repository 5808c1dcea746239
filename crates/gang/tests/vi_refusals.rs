//! Operations that are refused halfway, or because of a process's own part, lose nothing.

use crate::vis::interfaces::{Interfaces, PortControl, RankPort, SaveError};
use crate::vis::{CHECKPOINTER, PORT_SUSPENDER, Plan, attributes, finish, world};
use midplane_gang::names::{JobId, Rank};
use midplane_gang::port_suspender::PortSuspender;
use midplane_gang::process::SuspendHandle;
use midplane_simhw::id::{NodeId, PortId};
use midplane_simhw::port::PortOptions;
use midplane_simhw::sim::SimHost;
use midplane_via::attributes::Reliability;
use midplane_via::checkpointer::{Checkpointer, CheckpointerError, Refused};
use midplane_via::context::PortContext;
use midplane_via::descriptor::Descriptor;
use midplane_via::memory::MemoryOptions;
use midplane_via::nic::{Nic, NicContext, NicRestoreError, ViId};
use serde_json::{Value, json};

/// Opens a NIC, with an interface that is not connected and has a posted receive.
async fn process(host: &SimHost) -> (Nic, ViId) {
    let mut nic = Nic::open(host, PortOptions::default()).await.unwrap();
    let queue = nic.create_cq();
    let reliability = attributes(Reliability::ReliableDelivery);
    let vi = nic.create_vi_with(reliability, None, Some(queue)).await.unwrap();
    let memory = nic.register(64, MemoryOptions::default()).unwrap();
    nic.post_receive(vi, Descriptor::of(memory.segment(8, 40).unwrap())).unwrap();
    (nic, vi)
}

/// A job that names one port twice: the NIC has forgotten its interfaces when the port's second turn comes.
#[test]
fn a_partly_forgotten_save_returns_the_saved_state() {
    let mut world = world(&Plan::default());
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    finish(&mut world, String::new, async move {
        let mut nics = Vec::new();
        for host in &hosts {
            nics.push(process(host).await);
        }
        let holds = hosts.iter().map(|host| PortControl {
            port_suspender: PortSuspender::open(host, PortId(PORT_SUSPENDER)).unwrap(),
            checkpointer: Checkpointer::open(host, PortId(CHECKPOINTER)).unwrap(),
        });
        let ports = [nics[0].0.port(), nics[1].0.port()];
        let held = |at: usize| RankPort {
            hold: at,
            port: ports[at],
            suspend_handle: SuspendHandle::new(),
        };
        let mut twice = Interfaces::new(JobId(1), holds.collect(), vec![held(0), held(1), held(1)]);
        twice.freeze(&hosts[0]).await.unwrap();
        let SaveError::Forget { rank, error, saved } = twice.save(true).await.unwrap_err() else {
            panic!("the third is the second")
        };
        assert_eq!(rank, Rank(2));
        assert!(
            matches!(error, CheckpointerError::Refused { why: Refused::Changed, .. }),
            "{error}"
        );
        assert_eq!(saved.ranks[1], saved.ranks[2]);
        // With the saved state in the error, the caller can restore the interfaces.
        let mut saved = *saved;
        saved.ranks.pop();
        let ranks = vec![held(0), held(1)];
        let mut once = Interfaces::new(JobId(1), twice.into_port_controls(), ranks);
        assert!(once.save(false).await.unwrap().ranks.iter().all(|rank| rank.vis.is_empty()));
        once.restore(&saved, None).await.unwrap();
        assert_eq!(once.save(false).await.unwrap(), saved);
    });
}

/// Returns the context with a changed value at `place`.
fn change(context: &NicContext, place: &str, to: impl FnOnce(&mut Value)) -> NicContext {
    let mut value = serde_json::to_value(context).unwrap();
    to(value.pointer_mut(place).unwrap());
    serde_json::from_value(value).unwrap()
}

fn again(list: &mut Value) {
    let first = list[0].clone();
    list.as_array_mut().unwrap().push(first);
}

#[test]
fn a_contradictory_part_of_a_process_is_refused_with_the_reason() {
    let mut world = world(&Plan::default());
    let hosts = [0, 1].map(|node| world.host(NodeId(node)));
    finish(&mut world, String::new, async move {
        let (mut nic, _) = process(&hosts[0]).await;
        let saved = nic.save().unwrap();
        let taken: PortContext = PortContext { vis: Vec::new(), errors: Vec::new() };
        let cookie = "/vis/0/posted/1/0/cookie";
        let changes = [
            ("two regions have one name", change(&saved, "/memory", again)),
            ("an interface is there twice", change(&saved, "/vis", again)),
            (
                "a completion queue that is not there",
                change(&saved, "/vis/0/told/1", |told| *told = json!(1)),
            ),
            (
                "a descriptor lies outside its memory",
                change(&saved, "/vis/0/posted/1/0/pieces/0/offset", |offset| *offset = json!(25)),
            ),
            (
                "a descriptor's cookie is not one that there is",
                change(&saved, cookie, |cookie| *cookie = json!(u64::MAX)),
            ),
        ];
        for (what, wrong) in changes {
            let options = PortOptions::default();
            let error = Nic::restore(&hosts[1], options, &wrong, &taken).await.unwrap_err();
            let NicRestoreError::Malformed(said) = error else { panic!("{what}: {error}") };
            assert!(said.contains(what), "{what}: {said}");
        }
        let restored = Nic::restore(&hosts[1], PortOptions::default(), &saved, &taken).await;
        restored.unwrap();
    });
}
