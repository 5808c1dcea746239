//! Runs a program on all ranks in turns. A rank is polled only after it was woken, so that a lost wake-up is a failure.

use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use midplane_simhw::rng::Rng;
use midplane_via::message::communicator::Communicator;
use midplane_via::message::engine::{Config, Engine, WhenFull};
use midplane_via::message::envelope::Tag;
use midplane_via::message::memory::{MemoryConfig, network};

use super::Program;
pub(crate) use super::World;

/// Records that a rank was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn world(ranks: u32, memory: MemoryConfig, config: Config) -> Vec<World> {
    let ends = network(ranks as usize, memory).into_iter();
    ends.map(|end| Communicator::world(Engine::new(end, config), ranks).unwrap()).collect()
}

/// Runs `program` over several networks in memory: with ample room; with every message sent by rendezvous and cut into
/// parts; and with queues and windows always full. Then over streams that break again and again, without memory and
/// with memory that is found later.
pub(crate) fn run(ranks: u32, program: &Program) {
    let ample = (MemoryConfig::default(), Config::default());
    let cut = (MemoryConfig::default().room(64).depth(3).seed(1), Config::default().eager(16));
    let narrow = (
        MemoryConfig::default().room(700).depth(1).seed(2),
        Config::default().window(4096).batch(2),
    );
    let waiting = (narrow.0.seed(3), narrow.1.when_full(WhenFull::Wait).window(1 << 16));
    for (memory, config) in [ample, cut, narrow, waiting] {
        attempt(program, world(ranks, memory, config), &(memory, config));
    }
    for with_memory in [false, true] {
        for config in [Config::default(), cut.1] {
            let world = super::breaking::world(ranks, config, with_memory);
            attempt(program, world, &(with_memory, config));
        }
    }
}

/// Runs `program` on all ranks; prints the settings if it fails.
fn attempt(program: &Program, world: Vec<World>, settings: &dyn Debug) {
    let views = world.clone();
    let programs = world.into_iter().map(program);
    let done = catch_unwind(AssertUnwindSafe(|| turns(programs.collect(), &views)));
    if let Err(panic) = done {
        eprintln!("with {settings:?}");
        // Leaks the ranks with the operations that wait in them; the panic already has the reason.
        std::mem::forget(views);
        resume_unwind(panic);
    }
}

/// Polls the woken ranks, in a random order, until all are done. A rank that is done serves the others, because it has
/// not finalised.
pub(crate) fn turns<F: Future<Output = ()> + Send + 'static>(programs: Vec<F>, views: &[World]) {
    let boxed = |program| Box::pin(program) as Pin<Box<dyn Future<Output = ()> + Send>>;
    boxed_turns(programs.into_iter().map(boxed), views);
}

fn boxed_turns(
    programs: impl Iterator<Item = Pin<Box<dyn Future<Output = ()> + Send>>>,
    views: &[World],
) {
    let mut rng = Rng::new(7, "turns");
    let mut ranks: Vec<_> = programs
        .map(|program| {
            let flag = Arc::new(Flag(AtomicBool::new(true)));
            (program, Waker::from(Arc::clone(&flag)), flag, false)
        })
        .collect();
    loop {
        let first = rng.below(ranks.len() as u64) as usize;
        let mut polled = false;
        for step in 0..ranks.len() {
            let at = (first + step) % ranks.len();
            let (program, waker, flag, done) = &mut ranks[at];
            if !flag.0.swap(false, Ordering::Relaxed) {
                continue;
            }
            polled = true;
            let future: Pin<&mut _> = program.as_mut();
            let mut context = Context::from_waker(waker);
            if future.poll(&mut context).is_ready() && !std::mem::replace(done, true) {
                let view = views[at].clone();
                *program = Box::pin(async move {
                    let _ = view.probe(view.rank(), Tag(0xFFFF_0000)).await;
                });
                waker.wake_by_ref();
            }
        }
        if ranks.iter().all(|(.., done)| *done) {
            return;
        }
        let stuck = || views.iter().map(|v| format!("rank {}:\n{}", v.rank(), v.explain()));
        assert!(polled, "no rank was woken\n{}", stuck().collect::<String>());
    }
}
