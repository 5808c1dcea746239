//! The measurement of `lab pingpong` over iceoryx2: `midplane-iceoryx2-pingpong BYTES COUNT BATCH`.
//!
//! Prints the median and the 99th percentile of one way, in microseconds, over COUNT batches of BATCH round trips, and
//! GB/s one way, with an acknowledgement after each 16 messages. Starts itself as the second process; both busy-poll
//! without pause, and read every byte.

use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use iceoryx2::port::{publisher::Publisher, subscriber::Subscriber};
use iceoryx2::prelude::*;

/// Messages one way before the receiver acknowledges them.
const WINDOW: usize = 16;
/// Bytes of the acknowledgement.
const WORD: usize = 8;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Returns the folder in which iceoryx2 keeps its files of services; the first process removes it at the end.
fn folder(name: &str) -> String {
    std::env::temp_dir().join(format!("midplane-iceoryx2-{name}")).display().to_string()
}

/// One process's two directions.
struct Side {
    out: Publisher<ipc::Service, [u8], ()>,
    from: Subscriber<ipc::Service, [u8], ()>,
}

impl Side {
    fn open(name: &str, bytes: usize, asks: bool) -> Fallible<Self> {
        let mut config = Config::default();
        config.global.set_root_path(&Path::new(folder(name).as_bytes())?);
        let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
        let service = |direction: &str| -> Fallible<_> {
            let name = format!("midplane/{name}/{direction}");
            Ok(node
                .service_builder(&name.as_str().try_into()?)
                .publish_subscribe::<[u8]>()
                .subscriber_max_buffer_size(2 * WINDOW)
                .enable_safe_overflow(false)
                .open_or_create()?)
        };
        let (out, from) = if asks { ("there", "back") } else { ("back", "there") };
        let out =
            service(out)?.publisher_builder().initial_max_slice_len(bytes.max(WORD)).create()?;
        let from = service(from)?.subscriber_builder().create()?;
        Ok(Self { out, from })
    }

    fn send(&self, bytes: usize) -> Fallible<()> {
        let sample = self.out.loan_slice_uninit(bytes)?;
        sample.write_from_fn(|at| at as u8).send()?;
        Ok(())
    }

    fn receive(&self) -> Fallible<()> {
        loop {
            if let Some(sample) = self.from.receive()? {
                black_box(sample.payload().iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }

    /// Waits until the other side has connected: messages sent before are lost.
    fn meet(&self) -> Fallible<()> {
        loop {
            if self.out.loan_slice_uninit(WORD)?.write_from_fn(|_| 0).send()? > 0 {
                return self.receive();
            }
            std::thread::yield_now();
        }
    }
}

fn ask(side: &Side, bytes: usize, count: usize, batch: usize) -> Fallible<()> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        for _ in 0..batch {
            side.send(bytes)?;
            side.receive()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / (2 * batch) as f64);
    }
    let start = Instant::now();
    let windows = (count * batch).div_ceil(WINDOW);
    for _ in 0..windows {
        for _ in 0..WINDOW {
            side.send(bytes)?;
        }
        side.receive()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let gb_per_s = (windows * WINDOW * bytes) as f64 / seconds / 1e9;
    println!("{} {} {gb_per_s}", times[count / 2], times[count * 99 / 100]);
    Ok(())
}

fn answer(side: &Side, bytes: usize, count: usize, batch: usize) -> Fallible<()> {
    for _ in 0..count * batch {
        side.receive()?;
        side.send(bytes)?;
    }
    for _ in 0..(count * batch).div_ceil(WINDOW) {
        for _ in 0..WINDOW {
            side.receive()?;
        }
        side.send(WORD)?;
    }
    Ok(())
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [program, bytes, count, batch, rest @ ..] = &arguments[..] else {
        return Err("usage: midplane-iceoryx2-pingpong BYTES COUNT BATCH".into());
    };
    set_log_level(LogLevel::Error);
    let (bytes, count, batch) = (bytes.parse()?, count.parse()?, batch.parse()?);
    if let [name] = rest {
        let side = Side::open(name, bytes, false)?;
        side.meet()?;
        return answer(&side, bytes, count, batch);
    }
    let name = std::process::id().to_string();
    let mut other = Command::new(program).args(&arguments[1..]).arg(&name).spawn()?;
    let side = Side::open(&name, bytes, true)?;
    side.meet()?;
    let asked = ask(&side, bytes, count, batch);
    if asked.is_err() {
        other.kill()?;
    }
    other.wait()?;
    drop(side);
    std::fs::remove_dir_all(folder(&name))?;
    asked
}
