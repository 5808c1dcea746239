//! Measures the simulated fabric: packets, events and sleeps per second of real time, on one core.
//!
//! `cargo bench -p midplane-benches --bench sim` prints a table, with `-- --report=full` the rows whose name contains "full", and
//! with `-- --json` one JSON document.

mod scale;

use allocation_counter::measure;
use midplane::simhw::hardware::Firmware;
use midplane::simhw::host::Host;
use midplane::simhw::id::NodeId;
use midplane::simhw::link::LinkProfile;
use midplane::simhw::profile::NicProfile;
use midplane::simhw::sim::World;
use midplane::simhw::switch::{Buffer, SwitchProfile};
use midplane::simhw::time::{Instant, LineRate};
use midplane::simhw::topology::Topology;
use midplane_benches::incast::fabrics;
use midplane_benches::incast::setting::{Mode, Setting};
use midplane_benches::nodes::Fabric;
use midplane_benches::work::load;
use serde_json::json;

/// Counts per second of real time, one per run.
#[derive(Debug, Default)]
struct Speeds {
    packets: Vec<f64>,
    events: Vec<f64>,
    /// Largest value over all runs.
    allocations_per_packet: f64,
}

/// Holds a row's results and their unit.
type Measured = (Vec<f64>, &'static str);

const RUNS: usize = 7;
/// Virtual nanoseconds after which rings, pools and tables have reached their size.
const WARM_UP: u64 = 5_000_000;

/// Runs a world several times over `nanos` of virtual time, after a warm-up.
fn speeds<F: Firmware>(mut world: World<F>, nanos: u64) -> Speeds {
    world.run_until(Instant::from_nanos(WARM_UP));
    let mut speeds = Speeds::default();
    for _ in 0..RUNS {
        let until = world.now().plus_nanos(nanos);
        let (sent, events) = (world.traffic().sent, world.events());
        let mut seconds = 0.0;
        let allocated = measure(|| seconds = self::seconds(|| world.run_until(until)));
        let packets = (world.traffic().sent - sent) as f64;
        let allocations = allocated.count_total as f64;
        speeds.packets.push(packets / seconds);
        speeds.events.push((world.events() - events) as f64 / seconds);
        speeds.allocations_per_packet =
            speeds.allocations_per_packet.max(allocations / packets.max(1.0));
    }
    speeds
}

/// Returns the processor seconds of `work`; other load on the machine affects them less than elapsed time.
#[cfg(target_os = "linux")]
fn seconds(work: impl FnOnce()) -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let begin = now();
    work();
    now() - begin
}

/// Returns the seconds of `work`.
#[cfg(not(target_os = "linux"))]
fn seconds(work: impl FnOnce()) -> f64 {
    #[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
    let begin = std::time::Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

/// An empty firmware, for measurements without NICs.
#[derive(Debug)]
struct Nothing;

impl Firmware for Nothing {}

fn one_node() -> Topology {
    let link = LinkProfile::plain(LineRate::mbps(100), std::time::Duration::ZERO);
    Topology::star(1, link, SwitchProfile::new(Buffer::Bytes(1 << 20)))
}

/// Returns the nanoseconds of one sleep.
fn nap(number: u64) -> u64 {
    1_000 + (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50)
}

/// Creates `count` tasks that sleep for 1 to about 17 us, repeatedly.
fn sleepers(count: u64) -> World<Nothing> {
    let mut world = World::new(&one_node(), NicProfile::FREE, 1, |_, _| Nothing);
    for number in 0..count {
        let host = world.host(NodeId(0));
        let nap = nap(number);
        world.spawn(NodeId(0), async move {
            loop {
                host.sleep_until(host.now().plus_nanos(nap)).await;
            }
        });
    }
    world
}

/// One line of the report.
struct Row {
    name: &'static str,
    bound: &'static str,
    measure: fn() -> Measured,
}

const fn row(name: &'static str, bound: &'static str, measure: fn() -> Measured) -> Row {
    Row { name, bound, measure }
}

fn millions(speeds: Vec<f64>) -> Vec<f64> {
    speeds.into_iter().map(|speed| speed / 1e6).collect()
}

fn packets(speeds: Speeds) -> Measured {
    assert!(speeds.allocations_per_packet < 0.001, "no allocation per packet");
    (millions(speeds.packets), "M packet/s")
}

fn events(speeds: Speeds) -> Measured {
    (millions(speeds.events), "M event/s")
}

fn sleeps(speeds: Speeds) -> Measured {
    (millions(speeds.events), "M sleep/s")
}

/// Rows of the report: name, goal, measurement.
const ROWS: [Row; 15] = [
    row("packets, plain links, 95 % of the output", ">= 3", || {
        packets(speeds(load::plain(95), 200_000_000))
    }),
    row("packets, plain links, 150 %", "", || packets(speeds(load::plain(150), 150_000_000))),
    row("packets, full NIC model and async tasks, 95 %", ">= 2", || {
        packets(speeds(load::full(95, 1), 150_000_000))
    }),
    row("packets, incast of 16 senders as its example has it", ">= 2", incast),
    row("packets, full, 8 frames a doorbell, 95 %", "", || {
        packets(speeds(load::full(95, 8), 150_000_000))
    }),
    row("packets, full, 8 frames a doorbell, 150 %", "", || {
        packets(speeds(load::full(150, 8), 100_000_000))
    }),
    row("engine, 1,000 events pending", ">= 15", || {
        events(speeds(load::engine(1_000), 10_000_000))
    }),
    row("engine, 100,000 events pending", ">= 6", || {
        events(speeds(load::engine(100_000), 10_000_000))
    }),
    row("digest on against off, time", "<= 5", digest_cost),
    row("async sleeps, 1,000 tasks", ">= 10", || sleeps(speeds(sleepers(1_000), 10_000_000))),
    row("async sleeps, 100,000 tasks", "", || sleeps(speeds(sleepers(100_000), 300_000))),
    row("500 hosts, 100 messages/s each, 10 s", "< 15", || {
        let mut world = scale::light(500, 500);
        let seconds = seconds(|| world.run_until(Instant::from_nanos(10_000_000_000)));
        assert!(world.traffic().delivered > 490_000, "{:?}", world.traffic());
        (vec![seconds], "s")
    }),
    row("10,000 nodes of which 100 send, compared with 100", "<= 1.3", few_of_many),
    row("10,000 idle nodes, memory", "<= 100", || megabytes(None)),
    row("... with a task and a port of 16 commands each", "", || megabytes(Some(16))),
];

/// Runs what `incast --fabric sim --mode none --senders 16 --message-bytes 1000 --link-mbps 1000` runs.
fn incast() -> Measured {
    let setting = Setting {
        fabric: Fabric::Sim,
        mode: Mode::None,
        senders: 16,
        message_bytes: 1_000,
        link_mbps: 1_000,
        buffer_bytes: 32_768,
        atm: None,
        seconds: 0.5,
        sealed: false,
        seed: 1,
    };
    let speed = |_| {
        let mut frames = 0;
        let seconds = seconds(|| {
            let run = fabrics::simulate(&setting).expect("the setting is right");
            frames = run.frames.expect("it is simulated");
        });
        frames as f64 / seconds
    };
    (millions((0..RUNS).map(speed).collect()), "M packet/s")
}

/// Times the same traffic of 100 nodes among 10,000 and among 100, in several pairs; returns the ratios.
fn few_of_many() -> Measured {
    let time = |nodes| {
        let mut world = scale::light(nodes, 100);
        world.run_until(Instant::from_nanos(WARM_UP));
        seconds(|| world.run_until(Instant::from_nanos(5_000_000_000)))
    };
    ((0..RUNS).map(|_| time(10_000) / time(100)).collect(), "x")
}

/// Times the same events with and without the digest, in several pairs; returns the ratios.
fn digest_cost() -> Measured {
    let time = |digesting: bool| {
        let mut world = load::engine(1_000);
        world.set_digesting(digesting);
        world.run_until(Instant::from_nanos(WARM_UP));
        let until = world.now().plus_nanos(10_000_000);
        seconds(|| world.run_until(until))
    };
    let cost = |_| (time(true) / time(false) - 1.0) * 100.0;
    ((0..RUNS).map(cost).collect(), "%")
}

fn megabytes(depth: Option<usize>) -> Measured {
    let mut world = None;
    let allocated = measure(|| {
        world.insert(scale::idle(10_000, depth)).run_until(Instant::from_nanos(1_000));
    });
    (vec![allocated.bytes_current as f64 / 1e6], "MB")
}

/// Measures the rows whose name contains `only`, and prints them.
fn report(only: &str, as_json: bool) {
    let mut rows = Vec::new();
    if !as_json {
        println!(
            "median, lowest and highest of {RUNS} runs each, in seconds of the processor; packets: 16 senders to 1, 1000 bytes,\n\
             two hops, counted when they are sent: at 150 % a third of them is dropped at the switch. Memory and 500 hosts are\n\
             measured once.\n"
        );
        println!("{:<52} {:>8} {:>8} {:>17}", "", "bound", "median", "lowest - highest");
    }
    for Row { name, bound, measure } in ROWS.iter().filter(|row| row.name.contains(only)) {
        let (mut values, unit) = measure();
        values.sort_by(f64::total_cmp);
        let (lowest, median, highest) =
            (values[0], values[values.len() / 2], values[values.len() - 1]);
        if as_json {
            let what = name.replace(' ', "-");
            rows.push(json!({"what": what, "unit": unit, "median": median, "lowest": lowest, "highest": highest}));
        } else {
            let spread = format!("{lowest:.2} - {highest:.2}");
            println!("{name:<52} {bound:>8} {median:>8.2} {spread:>17} {unit}");
        }
    }
    if as_json {
        println!("{}", json!({"rows": rows}));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("--report="));
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    // Tests run each bench once: this one takes a minute.
    if !has("--test") {
        report(only.unwrap_or_default(), has("--json"));
    }
}
