//! Two processes that talk over TCP and know nothing of gang scheduling; the second has left its rank's session.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;

use midplane_gang::live::daemon::probe_control_groups;

use crate::scenes::listing;
use crate::stage::{Stage, itself, said, wait_until};

/// Preemptions of each job.
const PREEMPTIONS: u32 = 64;
const BLOCK: usize = 8 << 10;

/// Two such jobs take turns. Where there are no control groups, the second process stays in its rank's group.
pub(crate) fn survives() {
    let stage = Stage::alone(1, 10);
    let itself = std::env::current_exe().unwrap();
    let part = match probe_control_groups() {
        Ok(_) => "--tcp-with-session",
        Err(_) => "--tcp-with-child",
    };
    let command = [itself.to_str().unwrap(), part, stage.path().to_str().unwrap()];
    let clients = [1, 2].map(|_| stage.client(1, &command).spawn().unwrap());
    wait_until("both were preempted often", || {
        let jobs = listing(&stage).jobs;
        jobs.len() == 2 && jobs.iter().all(|job| job.preemptions >= PREEMPTIONS)
    });
    std::fs::write(stage.path().join("enough"), "").unwrap();
    for client in clients {
        let (code, out, error) = stage.end(client);
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        let blocks: u64 = out.trim().parse().unwrap();
        assert!(blocks > 100, "{blocks} blocks");
    }
}

/// Returns a block that differs from all others.
fn block(number: u64) -> Vec<u8> {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..BLOCK).map(|at| (mixed >> (at % 8 * 8)) as u8 ^ (at >> 3) as u8).collect()
}

/// Sends blocks to a process of its own until the test has seen enough, and reads all of them back in order.
pub(crate) fn first(folder: &Path, other: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let second = itself().args([other, &port]).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut back = stream.try_clone().unwrap();
    let reading = std::thread::spawn(move || read_all(&mut back, |_| {}));
    let mut sent = 0;
    while !folder.join("enough").exists() {
        stream.write_all(&block(sent)).unwrap();
        sent += 1;
    }
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(reading.join().unwrap(), sent);
    assert_eq!(said(second.wait_with_output().unwrap()).0, 0);
    println!("{sent}");
}

/// Checks every block, and sends it back.
pub(crate) fn second(port: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    let mut back = stream.try_clone().unwrap();
    read_all(&mut stream, |bytes| back.write_all(bytes).unwrap());
}

/// Reads and checks blocks until their end; returns their number.
fn read_all(stream: &mut TcpStream, mut each: impl FnMut(&[u8])) -> u64 {
    let mut bytes = vec![0; BLOCK];
    for number in 0.. {
        match stream.read(&mut bytes[..1]).unwrap() {
            0 => return number,
            _ => stream.read_exact(&mut bytes[1..]).unwrap(),
        }
        assert!(bytes == block(number), "block {number}");
        each(&bytes);
    }
    0
}
