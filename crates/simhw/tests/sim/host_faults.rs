//! Tests faults between a NIC and its host, of hosts and of clocks: each has its effect while it lasts, is counted, and
//! ends.

use std::time::Duration;

use midplane_simhw::drops::DropCause;
use midplane_simhw::fault::{Chaos, Fault, FaultCounts, FaultKind, Incident};
use midplane_simhw::hardware::Dma;
use midplane_simhw::host::Host;
use midplane_simhw::id::{Incarnation, NodeId, TimerId};
use midplane_simhw::port::{Command, Completion};
use midplane_simhw::profile::NicProfile;
use midplane_simhw::sim::{SimHost, World};
use proptest::prelude::*;

use crate::sim::faults::{MS, Stream, from_2_to_4_ms, micros};
use crate::sim::harness::{
    A, B, Happening, Log, Probe, Sending, assert_conserved, at, scripted_world, star,
};

/// Returns a firmware that completes every command at once, after it has read and written the command's memory.
fn obliging(log: Log<Command>) -> Probe {
    Probe::new(move |hw, happening| {
        if let Happening::Doorbell(port) = happening {
            while let Some(command) = hw.next_command(port) {
                log.add(command);
                let copy = Dma { from: command.region, to: command.region };
                let moved = hw.dma(copy).is_ok();
                let length = u64::from(moved);
                let completion =
                    Completion { length, cookie: command.cookie, ..Completion::default() };
                hw.complete(port, &completion);
            }
            hw.commit();
        }
    })
}

/// Result of one command at its application: when it completed, and whether its memory was reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Outcome {
    posted: u64,
    after: Option<u64>,
    moved: bool,
}

/// Commands every 100 us for 8 ms, each given up after 40 us, and their results.
struct Commands {
    world: World<Probe>,
    outcomes: Vec<Outcome>,
    seen: Vec<Command>,
}

async fn submit_all(host: SimHost, outcomes: Log<Outcome>) {
    let mut port = host.open_port().unwrap();
    let memory = port.register(64).unwrap();
    let start = host.now();
    for number in 0..80_u64 {
        let posted = start.plus_nanos(number * 100_000);
        host.sleep_until(posted).await;
        let command = Command { cookie: number, region: memory.whole(), ..Command::default() };
        port.submit(&command).unwrap();
        let answer = async {
            loop {
                let done = port.completion().await.unwrap();
                if done.cookie == number {
                    return done;
                }
            }
        };
        let answer = give_up_after(&host, micros(40), answer).await;
        let after = answer.map(|_| host.now().nanos_since(posted));
        let moved = answer.is_some_and(|done| done.length == 1);
        outcomes.add(Outcome { posted: number * 100_000, after, moved });
    }
}

/// Returns `task`'s output if it completes in time.
async fn give_up_after<T>(
    host: &SimHost,
    limit: Duration,
    task: impl Future<Output = T>,
) -> Option<T> {
    let mut task = std::pin::pin!(task);
    let mut sleep = std::pin::pin!(host.sleep_until(host.now() + limit));
    std::future::poll_fn(|context| {
        use std::task::Poll;
        if let Poll::Ready(value) = task.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

impl Commands {
    fn under(fault: Fault) -> Self {
        let (seen, outcomes) = (Log::new(), Log::new());
        let log = seen.clone();
        let mut world =
            World::new(&star(1), NicProfile::MODERN, 3, move |_, _| obliging(log.clone()));
        world.schedule(from_2_to_4_ms(fault));
        world.spawn(A, submit_all(world.host(A), outcomes.clone()));
        world.run_until(at(20 * MS));
        assert!(world.faults_fired().of(fault.kind()) > 0, "{fault:?} has had no effect");
        let outcomes = outcomes.entries();
        let usual = outcomes.first().and_then(|first| first.after).unwrap();
        let sound = |one: &Outcome| one.moved && one.after == Some(usual);
        assert!(outcomes.iter().filter(|one| one.posted < 19 * MS / 10).all(sound), "{fault:?}");
        assert!(
            outcomes.iter().filter(|one| one.posted > 41 * MS / 10).all(sound),
            "{fault:?} heals"
        );
        Self { world, outcomes, seen: seen.entries() }
    }

    fn fired(&self, kind: FaultKind) -> u64 {
        self.world.faults_fired().of(kind)
    }

    fn unanswered(&self) -> u64 {
        self.outcomes.iter().filter(|one| one.after.is_none()).count() as u64
    }
}

#[test]
fn stalled_dma_engines_delay_completions() {
    let commands = Commands::under(Fault::DmaStall { node: A });
    assert_eq!(commands.unanswered(), 20);
}

#[test]
fn a_dma_error_is_reported_to_the_firmware() {
    let commands = Commands::under(Fault::DmaError { node: A, probability: 0.5 });
    let failed = commands.outcomes.iter().filter(|one| !one.moved).count() as u64;
    assert_eq!((failed, commands.unanswered()), (commands.fired(FaultKind::DmaError), 0));
}

#[test]
fn unpinned_memory_is_not_reached() {
    let commands = Commands::under(Fault::Unpinned { node: A });
    assert_eq!(commands.outcomes.iter().filter(|one| !one.moved).count(), 20);
}

#[test]
fn a_lost_doorbell_leaves_its_command_to_the_next() {
    let commands = Commands::under(Fault::DoorbellLost { node: A, probability: 1.0 });
    assert_eq!((commands.unanswered(), commands.seen.len()), (20, 80));
}

#[test]
fn a_doorbell_that_rings_twice_is_answered_once() {
    let commands = Commands::under(Fault::DoorbellDoubled { node: A, probability: 1.0 });
    assert_eq!((commands.unanswered(), commands.seen.len()), (0, 80));
}

#[test]
fn a_full_doorbell_queue_takes_no_more() {
    let commands = Commands::under(Fault::DoorbellQueue { node: A, depth: 0 });
    assert_eq!(commands.unanswered(), commands.fired(FaultKind::DoorbellQueue));
}

#[test]
fn a_lost_completion_never_arrives() {
    let commands = Commands::under(Fault::CompletionLost { node: A, probability: 1.0 });
    assert_eq!((commands.unanswered(), commands.seen.len()), (20, 80));
}

#[test]
fn a_lost_interrupt_leaves_the_completion_to_be_polled() {
    let commands = Commands::under(Fault::InterruptLost { node: A, probability: 1.0 });
    // The completion is in its queue when the application gives up and polls.
    let late = commands.outcomes.iter().filter(|one| one.after == Some(40_000)).count();
    assert_eq!((late, commands.unanswered()), (20, 0));
}

#[test]
fn a_late_interrupt_is_late() {
    let commands = Commands::under(Fault::InterruptLate { node: A, by: micros(30) });
    let usual = commands.outcomes[0].after.unwrap();
    assert_eq!(
        commands.outcomes.iter().filter(|one| one.after == Some(usual + 30_000)).count(),
        20
    );
}

#[test]
fn spurious_interrupts_wake_without_a_completion() {
    let every = micros(7);
    let commands = Commands::under(Fault::InterruptSpurious { node: A, every });
    assert_eq!((commands.unanswered(), commands.fired(FaultKind::InterruptSpurious)), (0, 286));
}

#[test]
fn a_damaged_command_names_no_memory_or_no_extension() {
    let commands = Commands::under(Fault::CommandDamaged { node: A, probability: 1.0 });
    let foreign = commands.seen.iter().filter(|command| command.extension.0 == 0x80).count();
    let stale = commands.outcomes.iter().filter(|one| !one.moved).count();
    assert!(foreign > 0 && stale > 0 && foreign + stale == 20, "{foreign} and {stale}");
}

#[test]
fn a_paused_host_leaves_its_nic_alone() {
    let seen = Log::new();
    let log = seen.clone();
    let mut world = World::new(&star(2), NicProfile::MODERN, 1, move |_, _| obliging(log.clone()));
    for node in [A, B] {
        let (host, ticks) = (world.host(node), seen.clone());
        world.spawn(node, async move {
            for _ in 0..80 {
                host.sleep_until(host.now() + micros(100)).await;
                let cookie = host.now().as_nanos();
                ticks.add(Command { node: host.node(), cookie, ..Command::default() });
            }
        });
    }
    world.schedule(from_2_to_4_ms(Fault::Pause { node: A }));
    world.run();
    let ticks = |node, from, to| {
        let of = |tick: &&Command| tick.node == node && (from..to).contains(&tick.cookie);
        seen.entries().iter().filter(of).count()
    };
    assert_eq!((ticks(A, 0, 2 * MS), ticks(A, 2 * MS, 4 * MS), ticks(B, 0, 4 * MS)), (19, 1, 39));
    assert_eq!((ticks(A, 0, u64::MAX), ticks(B, 0, u64::MAX)), (80, 80));
}

#[test]
fn the_tasks_of_a_slow_host_run_late() {
    let commands = Commands::under(Fault::SlowHost { node: A, by: micros(20) });
    let usual = commands.outcomes[0].after.unwrap();
    assert!(commands.outcomes.iter().any(|one| one.after.unwrap() >= usual + 20_000));
}

#[test]
fn a_crashed_node_restarts_with_its_tasks() {
    let stream = Stream::under(Fault::Crash { node: B });
    assert_eq!(stream.drops(DropCause::NicDown), 80);
    let mut world = World::new(&star(1), NicProfile::FREE, 1, |_, _| Probe::idle());
    let boots = Log::new();
    let log = boots.clone();
    world.on_boot(move |host| {
        log.add(host.now());
        host.spawn(std::future::pending());
    });
    world.spawn(A, std::future::pending());
    world.schedule(from_2_to_4_ms(Fault::Crash { node: A }));
    world.run_until(at(3 * MS));
    assert_eq!(world.tasks(), 0);
    world.run();
    assert_eq!((world.tasks(), boots.entries()), (1, vec![at(4 * MS)]));
}

#[test]
fn processes_that_exit_close_their_ports_and_restart() {
    let closed = Log::new();
    let log = closed.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, incarnation| {
        let log = log.clone();
        Probe::new(move |hw, happening| {
            if let Happening::Doorbell(port) = happening {
                while hw.next_command(port).is_some() {}
                log.add((incarnation, hw.now()));
            }
        })
    });
    let task = |host: SimHost| async move {
        let mut port = host.open_port().unwrap();
        port.submit(&Command::default()).unwrap();
        port.completion().await.unwrap();
    };
    world.on_boot(move |host| host.spawn(task(host.clone())));
    world.spawn(A, task(world.host(A)));
    // If two faults overlap, the later one restarts the processes.
    world.schedule(from_2_to_4_ms(Fault::ProcessExit { node: A }));
    world.schedule(Incident { at: at(3 * MS), ..from_2_to_4_ms(Fault::ProcessExit { node: A }) });
    world.run();
    let (once, restart) = (closed.entries(), Incarnation(1));
    assert_eq!(once, [(restart, at(0)), (restart, at(2 * MS)), (restart, at(5 * MS))]);
    assert_eq!((world.tasks(), world.faults_fired().of(FaultKind::ProcessExit)), (1, 2));
}

/// Sets an alarm every millisecond of the node's own clock. Returns the times at which it went off, in microseconds of
/// the world's clock and of its own.
fn ticking(fault: Fault, until: u64) -> Vec<(u64, u64)> {
    let ticks = Log::new();
    let out = ticks.clone();
    let mut world = World::new(&star(1), NicProfile::FREE, 1, move |_, _| {
        let ticks = ticks.clone();
        Probe::new(move |hw, happening| {
            if let Happening::Timer(_) = happening {
                ticks.add((0, hw.now().as_nanos() / 1_000));
            }
            let next = hw.now().plus_nanos(MS);
            hw.set_timer(TimerId(0), next);
            hw.commit();
        })
    });
    world.schedule(from_2_to_4_ms(fault));
    let mut outcomes = Vec::new();
    for micros in 0..until {
        world.run_until(at(micros * 1_000));
        let known = outcomes.len();
        outcomes.extend(out.entries()[known..].iter().map(|(_, own)| (micros, *own)));
    }
    assert!(world.faults_fired().of(fault.kind()) > 0);
    outcomes
}

#[test]
fn a_clock_that_drifts_is_fast_for_a_while() {
    let ticks = ticking(Fault::ClockDrift { node: A, ppm: 250_000 }, 6_100);
    let expected = [
        (1_000, 1_000),
        (2_000, 2_000),
        (2_800, 3_000),
        (3_600, 4_000),
        (4_500, 5_000),
        (5_500, 6_000),
    ];
    assert_eq!(ticks, expected);
}

#[test]
fn a_clock_that_is_slow_makes_no_alarm_early() {
    let ticks = ticking(Fault::ClockDrift { node: A, ppm: -500_000 }, 6_100);
    assert_eq!(
        ticks,
        [(1_000, 1_000), (2_000, 2_000), (4_000, 3_000), (5_000, 4_000), (6_000, 5_000)]
    );
}

#[test]
fn a_clock_that_leaps_ahead_sets_alarms_off() {
    let ticks = ticking(Fault::ClockStep { node: A, by: micros(700) }, 4_000);
    assert_eq!(ticks, [(1_000, 1_000), (2_000, 2_000), (2_300, 3_000), (3_300, 4_000)]);
}

#[test]
fn a_node_that_restarts_may_have_another_time() {
    for ahead_ns in [-1_000_000, 5_000_000_000_i64] {
        let mut world = World::new(&star(2), NicProfile::FREE, 1, |_, _| Probe::idle());
        world.schedule(from_2_to_4_ms(Fault::ClockSkew { node: A, ahead_ns }));
        let crash =
            Incident { at: at(2_500_000), lasts: micros(500), fault: Fault::Crash { node: A } };
        world.schedule(crash);
        world.run_until(at(5 * MS));
        let (a, b) = (world.host(A), world.host(B));
        assert_eq!(a.now().as_nanos() as i64 - b.now().as_nanos() as i64, ahead_ns);
        let end = a.now() + micros(10);
        let woken = world.block_on(A, async move {
            a.sleep_until(end).await;
            a.now()
        });
        assert_eq!((woken, world.now()), (Some(end), at(5 * MS + 10_000)));
        assert_eq!(world.faults_fired().of(FaultKind::ClockSkew), 1);
    }
}

#[test]
fn healing_ends_present_faults_and_cancels_future_ones() {
    let mut world = World::new(&star(2), NicProfile::FREE, 1, |_, _| Probe::idle());
    let crash = |node| Fault::Crash { node };
    world.schedule(Incident { lasts: Duration::from_secs(9), ..from_2_to_4_ms(crash(A)) });
    world.schedule(Incident { at: at(5 * MS), ..from_2_to_4_ms(crash(B)) });
    world.run_until(at(3 * MS));
    world.heal_all();
    assert!(world.host(A).open_port().is_ok());
    world.run();
    assert_eq!(world.faults_fired().of(FaultKind::Crash), 1);
}

fn chaos(incidents: usize) -> Chaos {
    Chaos {
        kinds: FaultKind::ALL.to_vec(),
        incidents,
        within: micros(7_000),
        longest: micros(4_000),
        delay: micros(200),
        ppm: 1_000,
    }
}

/// Runs frames among all nodes under a script of 30 incidents; returns the digest and the counts of faults.
fn run_under_chaos(seed: u64) -> (u64, FaultCounts) {
    let every = |to: u16| -> Vec<_> {
        let sending = |n: u64| Sending { at: n * 60_000, to: NodeId(to), length: 700 };
        (0..120).map(sending).collect()
    };
    let scripts = (0..4).map(|node| every((node + 1) % 4)).collect();
    let (mut world, _) = scripted_world(&star(4), NicProfile::MODERN, seed, scripts);
    for incident in chaos(30).script(&star(4), seed) {
        world.schedule(incident);
    }
    world.run_until(at(100 * MS));
    assert_conserved(&world);
    assert_eq!(world.frames_under_way(), 0, "seed {seed}");
    (world.digest(), *world.faults_fired())
}

#[test]
fn frames_are_conserved_and_runs_repeat_under_any_script() {
    let mut fired = run_under_chaos(0).1;
    for seed in 1..20 {
        let once = run_under_chaos(seed);
        assert_eq!(once, run_under_chaos(seed));
        fired += once.1;
    }
    assert!(fired.iter().count() > 25, "{fired:?}");
    let drawn = FaultKind::ALL.iter().map(|kind| {
        let of_one = Chaos { kinds: vec![*kind], ..chaos(1) };
        of_one.script(&star(4), 1)[0].fault.kind()
    });
    assert_eq!(drawn.collect::<Vec<_>>(), FaultKind::ALL);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn frames_are_conserved_and_runs_repeat_from_new_seeds(seed: u64) {
        assert_eq!(run_under_chaos(seed), run_under_chaos(seed));
    }
}
