//! Times of messages between two ranks of a job, over the channel that their daemon has given them.

use bytes::Bytes;
use clap::Args;
use clap::builder::RangedU64ValueParser;

use midplane::gang::carrier::ChannelCarrier;
use midplane::gang::live::clock;
use midplane::gang::live::rank::join;
use midplane::via::message::communicator::Communicator;
use midplane::via::message::engine::{Config, Engine};
use midplane::via::message::envelope::Tag;
use midplane::via::message::group::Rank;
use midplane_kit::claims::median;
use serde::Serialize;

use crate::processes;
use crate::report::{self, Failure};

const TAG: Tag = Tag(1);

/// Time messages between two ranks of a job, as a program for midplane gang run
///
/// For example: midplane gang run -n 2 -- lab channel. Rank 0 prints, for each size, the time of a message one way, and of
/// messages that both ranks send each other at once.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Sizes of the messages, in bytes, from 1 to 2^30
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 30),
        default_values_t = [64, 4_096, 65_536, 1 << 20]
    )]
    sizes: Vec<usize>,
    /// Messages of each size
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Medians and 99 % quantiles, in microseconds.
#[derive(Serialize)]
struct Run {
    bytes: usize,
    one_way_us: f64,
    one_way_p99_us: f64,
    each_way_us: f64,
    each_way_p99_us: f64,
}

#[derive(Serialize)]
struct Document {
    runs: Vec<Run>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let Some(runs) = processes::run(measure(arguments))? else { return Ok(0) };
    let titles = "bytes, one way us, p99 us, each way us, p99 us";
    report::print_document(arguments.json, &Document { runs }, |document| {
        let row = |run: &Run| {
            let times = [run.one_way_us, run.one_way_p99_us, run.each_way_us, run.each_way_p99_us];
            [run.bytes.to_string()].into_iter().chain(times.map(|it| format!("{it:.2}"))).collect()
        };
        report::table(titles, document.runs.iter().map(row))
    });
    Ok(0)
}

/// Returns the measurements of rank 0; `None` on rank 1.
async fn measure(arguments: &Arguments) -> Result<Option<Vec<Run>>, Failure> {
    let (_, channel) = join().await.map_err(Failure::of_run)?;
    let (rank, ranks) = (channel.rank().0, channel.ranks());
    if ranks != 2 {
        return Err(Failure::of_run(format!("there are {ranks} ranks; start it with -n 2")));
    }
    let engine = Engine::new(ChannelCarrier::new(channel), Config::default());
    let world = Communicator::world(engine, 2).map_err(Failure::of_run)?;
    let other = Rank(1 - u32::from(rank));
    let mut runs = Vec::new();
    for bytes in arguments.sizes.iter().copied() {
        let payload = Bytes::from(vec![7; bytes]);
        let (mut one_way, mut each_way) = (Vec::new(), Vec::new());
        for _ in 0..arguments.messages {
            let began = clock::now();
            // One after the other, then both at once.
            if rank == 0 {
                world.send(other, TAG, payload.clone()).await.map_err(Failure::of_run)?;
            }
            world.receive(other, TAG).await.map_err(Failure::of_run)?;
            if rank == 1 {
                world.send(other, TAG, payload.clone()).await.map_err(Failure::of_run)?;
            }
            let answered = clock::now();
            let exchanged = world.send_receive((other, TAG), payload.clone(), other, TAG).await;
            exchanged.map_err(Failure::of_run)?;
            one_way.push(answered.nanos_since(began) as f64 / 2e3);
            each_way.push(clock::now().nanos_since(answered) as f64 / 1e3);
        }
        let quantile = report::quantile;
        runs.push(Run {
            bytes,
            one_way_us: median(one_way.clone()),
            one_way_p99_us: quantile(one_way, 0.99),
            each_way_us: median(each_way.clone()),
            each_way_p99_us: quantile(each_way, 0.99),
        });
    }
    world.finalize().await;
    Ok((rank == 0).then_some(runs))
}
