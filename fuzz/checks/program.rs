//! Any bytes as a program: it is refused, and what is wrong named, or it is the one that its instructions
//! are written down as; then runs of it end, touch its own memory only, and fail nothing.

use midplane_nicvm::capability::Capability;
use midplane_nicvm::messages::{MESSAGES, Messages};
use midplane_nicvm::program::{self, PROGRAMS, Programs, assemble, check, disassemble};
use midplane_nicvm::unit::Unit;
use midplane_simhw::host::Host;
use midplane_simhw::id::NodeId;
use midplane_simhw::link::LinkProfile;
use midplane_simhw::port::Status;
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use midplane_simhw::switch::{Buffer, SwitchProfile};
use midplane_simhw::time::LineRate;
use midplane_simhw::topology::Topology;

/// Bytes before and after the program's memory.
const AROUND: usize = 64;
const FILL: u8 = 0xA5;

fn world() -> World<Unit> {
    let link = LinkProfile::ethernet(LineRate::mbps(1_000), std::time::Duration::ZERO);
    let topology = Topology::star(2, link, SwitchProfile::new(Buffer::Bytes(64 << 10)));
    World::new(&topology, NicProfile::MODERN, 1, |_, _| {
        let mut unit = Unit::default();
        unit.install(PROGRAMS, Programs::new()).expect("the number is free");
        unit.install(MESSAGES, Messages::new()).expect("the number is free");
        unit
    })
}

/// Builds a program over some memory, and runs it twice; whether the checker took it.
async fn play(host: SimHost, code: Vec<u8>, length: usize, waits: u8) -> bool {
    let mut port = host.open_port().expect("the NIC is up");
    let text = port.register(code.len().max(1)).expect("a small region");
    text.write(0, &code).expect("it fits");
    let memory = port.register(length + 2 * AROUND).expect("a small region");
    memory.write(0, &vec![FILL; length + 2 * AROUND]).expect("it fits");
    let (own, whole) = (memory.range(AROUND, length), text.range(0, code.len()));
    let (own, whole) = own.zip(whole).expect("within them");
    for cookie in 0..waits % 8 {
        port.submit(&program::wait(1_000 + u64::from(cookie))).expect("the ring is long");
    }
    port.submit(&program::build(whole, own, 1)).expect("the ring is long");
    let built = loop {
        let done = port.completion().await.expect("the NIC is up");
        if done.cookie == 1 {
            break done;
        }
    };
    if built.status == Status::Done {
        let [first, second, third, _] = built.args;
        let capability = Capability::from_words([first, second, third]);
        for _ in 0..2 {
            port.submit(&program::run(&capability, 2)).expect("the ring is long");
            while port.completion().await.expect("the NIC is up").cookie != 2 {}
        }
    }
    let mut after = vec![0; length + 2 * AROUND];
    memory.read(0, &mut after).expect("it is as long");
    let outside = after[..AROUND].iter().chain(&after[AROUND + length..]);
    assert!(outside.into_iter().all(|byte| *byte == FILL), "memory of others was written");
    built.status == Status::Done
}

pub(crate) fn run(bytes: &[u8]) {
    let Some(([length, waits], code)) = bytes.split_first_chunk::<2>() else { return };
    let length = usize::from(*length);
    let good = match disassemble(code) {
        Ok(program) => {
            assert_eq!(assemble(&program), code, "it is written down otherwise");
            let checked = check(&program, length as u32);
            if let Err((at, _)) = checked {
                assert!(at <= program.len(), "there is no instruction {at}");
            }
            checked.is_ok()
        }
        Err(_) => false,
    };
    let mut world = world();
    let host = world.host(NodeId(0));
    let taken = world.block_on(NodeId(0), play(host, code.to_vec(), length, *waits));
    assert_eq!(taken, Some(good), "the unit and the checker differ");
    assert_eq!(world.firmware(NodeId(0)).counters().traps, 0);
}
