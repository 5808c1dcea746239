use super::*;
use crate::id::{ExtensionId, NodeId};
use crate::region::{Access, Payload, ProtectionTag, RegionError, Rights};

struct Silent;
impl Bell for Silent {
    fn ring(&self, _: PortId) {}
}

fn pair(depth: usize) -> (Port, Ports) {
    let (port, nic) = port(PortName { id: PortId(0), epoch: 1 }, depth, Box::new(Silent));
    let mut ports = Ports::default();
    ports.insert(PortId(0), nic);
    (port, ports)
}

#[test]
fn commands_and_completions_cross_unchanged() {
    let (mut port, mut ports) = pair(4);
    let command = Command {
        extension: ExtensionId(250),
        opcode: 251,
        flags: 65_000,
        node: NodeId(65_001),
        port: PortId(65_002),
        cookie: u64::MAX - 1,
        region: RegionRef {
            port: PortId(0),
            slot: 65_003,
            generation: u32::MAX - 2,
            offset: u32::MAX - 3,
            length: u32::MAX - 4,
        },
        args: [1, u64::MAX, 3],
    };
    port.submit(&command).unwrap();
    assert_eq!(ports.next_command(PortId(0)), Some(command));
    let completion = Completion {
        status: Status::Cancelled,
        opcode: 251,
        flags: 65_000,
        node: NodeId(65_001),
        port: PortId(65_002),
        cookie: u64::MAX - 1,
        length: u64::MAX,
        args: [1, 2, 3, u64::MAX],
    };
    let nic = ports.at(PortId(0)).unwrap();
    nic.complete(&completion);
    nic.complete(&completion);
    assert_eq!(port.poll(), Some(completion));
    assert_eq!(port.poll(), None, "one completion a command");
}

#[test]
fn an_application_that_posts_more_commands_than_its_port_is_deep_loses_the_port() {
    let (mut port, mut ports) = pair(4);
    for _ in 0..4 {
        port.post(&Command::default()).unwrap();
    }
    port.commands.push(&Command::default().emit()).unwrap();
    for _ in 0..4 {
        assert_eq!(ports.next_command(PortId(0)), Some(Command::default()));
    }
    assert_eq!(ports.next_command(PortId(0)), None);
    assert_eq!((ports.take_closed(None), ports.open()), (Some(PortId(0)), 0));
    assert_eq!(port.post(&Command::default()), Err(PostError::Closed));
}

#[test]
fn a_command_holds_its_completion_slot_until_it_is_taken() {
    let (mut port, mut ports) = pair(4);
    for _ in 0..4 {
        port.post(&Command::default()).unwrap();
    }
    assert_eq!(port.post(&Command::default()), Err(PostError::QueueFull { depth: 4 }));
    while ports.next_command(PortId(0)).is_some() {
        ports.at(PortId(0)).unwrap().complete(&Completion::default());
    }
    assert_eq!(port.post(&Command::default()), Err(PostError::QueueFull { depth: 4 }));
    assert!(port.poll().is_some());
    port.post(&Command::default()).unwrap();
}

#[test]
fn a_region_lives_from_its_registration_to_its_drop() {
    let (mut port, mut ports) = pair(4);
    assert_eq!(port.register(0).unwrap_err(), RegisterError::Size(0));
    let region = port.register(16).unwrap();
    let handle = region.whole();
    ports.sync(PortId(0));
    ports.write(handle, Payload::from(&b"hello"[..])).unwrap();
    let mut bytes = [0; 5];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    drop(region);
    ports.sync(PortId(0));
    assert_eq!(ports.read(handle).unwrap_err(), RegionError::Stale);
    let again = port.register(16).unwrap();
    ports.sync(PortId(0));
    assert_eq!(again.whole().slot, handle.slot);
    assert_eq!(ports.read(handle).unwrap_err(), RegionError::Stale);
    ports.read(again.whole()).unwrap();
}

#[test]
fn a_handle_is_checked_against_its_owner_its_tag_and_its_rights() {
    let (mut port, mut ports) = pair(4);
    let options =
        RegionOptions::default().rights(Rights::LOCAL | Rights::REMOTE_WRITE).tag(ProtectionTag(5));
    let region = port.register_with(16, options).unwrap();
    assert_eq!((region.rights(), region.tag()), (options.rights, ProtectionTag(5)));
    ports.sync(PortId(0));
    let check = |access| ports.check(region.whole(), access);
    assert_eq!(check(Access::local(PortId(0), Rights::LOCAL)), Ok(()));
    assert_eq!(check(Access::remote(ProtectionTag(5), Rights::REMOTE_WRITE)), Ok(()));
    assert_eq!(check(Access::local(PortId(1), Rights::NONE)), Err(RegionError::Owner));
    assert_eq!(check(Access::remote(ProtectionTag(6), Rights::NONE)), Err(RegionError::Tag));
    let granted = options.rights;
    let denied = Err(RegionError::Rights { granted });
    assert_eq!(check(Access::remote(ProtectionTag(5), Rights::REMOTE_READ)), denied);
}

#[test]
fn a_port_whose_nic_stops_returns_closed() {
    let (mut port, ports) = pair(4);
    drop(ports);
    assert!(port.is_closed());
    assert_eq!(port.post(&Command::default()), Err(PostError::Closed));
    assert_eq!(port.register(8).unwrap_err(), RegisterError::Closed);
}

#[test]
fn a_dropped_port_is_removed() {
    let (port, mut ports) = pair(4);
    drop(port);
    ports.sync(PortId(0));
    assert!(ports.at(PortId(0)).is_none());
}
