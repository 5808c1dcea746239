//! Counts the instructions of each step, independent of the machine's load.
//!
//! `cargo bench -p midplane-benches --bench instructions` runs each piece of work by itself under valgrind's callgrind,
//! which counts the work and not its preparation. Without valgrind it prints a line and exits. `-- --json` prints one JSON document.
//!
//! Work that reads the clock crashes under valgrind if rustix asks the system for the time without libc. To count all
//! rows: `RUSTFLAGS="--cfg rustix_use_libc" cargo bench -p midplane-benches --bench instructions`.

use midplane_benches::callgrind::{self, COUNTED, WARM_UP};
use midplane_benches::chains;
#[cfg(target_os = "linux")]
use midplane_benches::work::interfaces;
use midplane_benches::work::{load, matching, messages};
use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};

use midplane::pipeline::fixed;
use midplane::simhw::hardware::Firmware;
use midplane::simhw::rng::Rng;
use midplane::simhw::sim::World;
use midplane::warp::gate::GateKeeper;
use serde_json::json;

/// Argument of the counted process, followed by the number of the piece.
const PIECE: &str = "--piece";
type Work = Box<dyn FnMut()>;

/// Prepares the counted work.
type Prepare = fn() -> Work;

const PIECES: &[(&str, Prepare)] = &[
    ("c_send of a congested gate", || {
        let (_, shut) = GateKeeper::new(1);
        Box::new(move || {
            let _ = black_box(shut.c_send(black_box(1_000), || ()));
        })
    }),
    ("c_send of an open gate", || {
        let (keeper, open) = GateKeeper::new(1 << 40);
        Box::new(move || {
            black_box(&keeper);
            let _ = black_box(open.c_send(black_box(1), || ()));
        })
    }),
    ("a message meets a posted receive", || Box::new(matching::expected())),
    ("a message is held and received", || {
        Box::new(matching::unexpected(matching::SHARED, matching::exact))
    }),
    ("... each with a key of its own", || {
        Box::new(matching::unexpected(matching::IN_ORDER, matching::exact))
    }),
    ("... in random order", || Box::new(matching::unexpected(matching::RANDOM, matching::exact))),
    ("equal fragments of four stages", || {
        let chain = chains::chain(&mut Rng::new(2, "chains"), 4);
        Box::new(move || {
            let _ = black_box(fixed::count(&chain, black_box(1e5), 1, 65_536));
        })
    }),
    ("10 us of a busy link, virtual: links", || virtually(load::plain(95))),
    ("10 us of a busy link, virtual: NICs", || virtually(load::full(95, 1))),
    ("64 B there and back in memory: carrier", || Box::new(messages::carrier(&[7; 64]))),
    ("64 B there and back in memory: engine", || Box::new(messages::engine(&[7; 64]))),
    ("64 B there and back in memory: process", || Box::new(messages::process(&[7; 64]))),
    ("64 B there and back in memory: futures", || Box::new(messages::futures(&[7; 64]))),
    #[cfg(target_os = "linux")]
    ("64 B there and back over shm: units", || over(interfaces::units)),
    #[cfg(target_os = "linux")]
    ("64 B there and back over shm: interfaces", || over(interfaces::interfaces)),
    #[cfg(target_os = "linux")]
    ("64 B there and back over shm: messages", || over(interfaces::messages)),
    #[cfg(target_os = "linux")]
    ("64 B there and back over shm: interfaces, gate open", || {
        held(interfaces::Nics::start_gated("instructions"), interfaces::gated)
    }),
    #[cfg(target_os = "linux")]
    ("64 B there and back over lanes: messages", || over(interfaces::lanes)),
];

/// Ten microseconds of virtual time: 11.9 packets of 16 senders to one receiver.
fn virtually<F: Firmware + 'static>(mut world: World<F>) -> Work {
    Box::new(move || {
        let until = world.now().plus_nanos(10_000);
        world.run_until(until);
    })
}

/// Builds work over NICs that live as long as the work.
#[cfg(target_os = "linux")]
fn over<W: FnMut() + 'static>(layer: impl FnOnce(&interfaces::Nics) -> W) -> Work {
    held(interfaces::Nics::start("instructions"), layer)
}

#[cfg(target_os = "linux")]
fn held<W: FnMut() + 'static>(
    nics: interfaces::Nics,
    layer: impl FnOnce(&interfaces::Nics) -> W,
) -> Work {
    let mut work = layer(&nics);
    Box::new(move || {
        let _alive = &nics;
        work();
    })
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let piece = words.iter().skip_while(|word| *word != PIECE).nth(1);
    if let Some(&(_, prepare)) = piece.and_then(|at| PIECES.get(at.parse::<usize>().ok()?)) {
        callgrind::play(&mut prepare());
        return ExitCode::SUCCESS;
    }
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        println!("skipped: valgrind is not on this machine; install it to count instructions");
        return ExitCode::SUCCESS;
    }
    let as_json = words.iter().any(|word| word == "--json");
    if !as_json {
        println!("instructions, mean of {COUNTED} times after {WARM_UP}");
        println!("(rows that are skipped need RUSTFLAGS=\"--cfg rustix_use_libc\")");
    }
    let mut rows = Vec::new();
    for (at, (what, _)) in PIECES.iter().enumerate() {
        match callgrind::count(&[PIECE, &at.to_string()]) {
            Ok(each) if as_json => {
                let what = what.replace(' ', "-");
                rows.push(json!({"what": what, "instructions": each}));
            }
            Ok(each) => println!("{what:<44}{each:>10.1}"),
            Err(why) if as_json => eprintln!("skipped: {what}: {why}"),
            Err(why) => println!("{what:<44}skipped: {why}"),
        }
    }
    if as_json {
        println!("{}", json!({"rows": rows}));
    }
    ExitCode::SUCCESS
}
