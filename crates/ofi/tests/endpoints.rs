//! Tests two endpoints of one process.

use std::future::poll_fn;
use std::time::Duration;

use midplane_ofi::endpoint::{Config, Endpoint, Event, PeerId, SendError};
use midplane_ofi::provider::{Choice, providers};

use crate::over_each;

/// Time after which a test fails as hung.
const LIMIT: Duration = Duration::from_secs(30);

fn pair(choice: &Choice, config: &Config) -> [(Endpoint, PeerId); 2] {
    let mut a = Endpoint::open(choice, config).unwrap();
    let mut b = Endpoint::open(choice, config).unwrap();
    let to_b = a.insert(b.name()).unwrap_or_else(|error| panic!("{choice}: {error}"));
    let to_a = b.insert(a.name()).unwrap();
    [(a, to_b), (b, to_a)]
}

/// Receives the next frame, and polls the other endpoint as well.
async fn next(endpoint: &mut Endpoint, other: &mut Endpoint) -> (Option<PeerId>, Vec<u8>) {
    let received = poll_fn(|context| {
        other.progress();
        endpoint.poll_event(context, true, |event| match event {
            Event::Frame { from, bytes } => (from, bytes.to_vec()),
            event => panic!("{event:?}"),
        })
    });
    tokio::time::timeout(LIMIT, received).await.expect("a frame arrives").unwrap()
}

#[test]
fn frames_of_all_lengths_arrive_both_ways() {
    over_each(async |choice| {
        let [(mut a, to_b), (mut b, to_a)] = pair(choice, &Config::new(70_000));
        let has_source = a.provider().has_source;
        for length in [0, 1, 63, 64, 4_096, 4_097, 16_384, 70_000] {
            let sent: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            a.send(to_b, &[&sent[..length / 2], &sent[length / 2..]]).unwrap();
            assert_eq!(
                next(&mut b, &mut a).await,
                (has_source.then_some(to_a), sent.clone()),
                "{choice}"
            );
            b.send(to_a, &[&sent]).unwrap();
            assert_eq!(next(&mut a, &mut b).await, (has_source.then_some(to_b), sent), "{choice}");
        }
        assert!(matches!(a.send(to_b, &[&[0; 70_001]]), Err(SendError::TooLong(70_000))));
    });
}

#[test]
fn a_sender_that_is_too_fast_gets_an_error_and_nothing_is_lost() {
    over_each(async |choice| {
        let config = Config::new(10_000).sends(16).receives(8);
        let [(mut a, to_b), (mut b, _)] = pair(choice, &config);
        let (mut sent, mut was_full, mut received) = (0_u32, false, Vec::new());
        while received.len() < 400 {
            while sent < 400 {
                let mut frame = vec![7; 9_000];
                frame[..4].copy_from_slice(&sent.to_le_bytes());
                match a.send(to_b, &[&frame]) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => {
                        was_full = true;
                        break;
                    }
                    Err(error) => panic!("{choice}: {error}"),
                }
            }
            let (_, frame) = next(&mut b, &mut a).await;
            received.push(u32::from_le_bytes(frame[..4].try_into().unwrap()));
        }
        assert!(was_full, "{choice}");
        received.sort_unstable();
        assert_eq!(received, (0..400).collect::<Vec<_>>(), "{choice}");
    });
}

#[test]
fn no_more_frames_are_in_flight_than_the_provider_accepts() {
    over_each(async |choice| {
        let config = Config::new(64).sends(usize::MAX).receives(usize::MAX);
        let endpoint = Endpoint::open(choice, &config).unwrap();
        assert!((1..usize::MAX).contains(&endpoint.room()), "{choice}");
    });
}

#[test]
fn a_waiting_task_is_woken_and_an_idle_one_uses_no_processor() {
    over_each(async |choice| {
        let [(mut a, to_b), (mut b, _)] = pair(choice, &Config::new(64));
        a.send(to_b, &[b"connect"]).unwrap();
        next(&mut b, &mut a).await;
        let mut polls = 0;
        let waits = tokio::spawn(async move {
            let bytes = poll_fn(|context| {
                polls += 1;
                b.poll_event(context, false, |event| match event {
                    Event::Frame { bytes, .. } => bytes.to_vec(),
                    event => panic!("{event:?}"),
                })
            });
            (bytes.await.unwrap(), polls, b.has_descriptor())
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        a.send(to_b, &[b"wake"]).unwrap();
        let end = tokio::time::Instant::now() + LIMIT;
        while !waits.is_finished() && tokio::time::Instant::now() < end {
            a.progress();
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        assert!(waits.is_finished(), "{choice}: the task was not woken");
        let (bytes, polls, has_descriptor) = waits.await.unwrap();
        assert_eq!(bytes, b"wake");
        // The task busy-polls for at most 200 us of these 300 ms. Busy-polling makes about a million polls a second.
        assert!(polls < 20_000, "{choice}: {polls} polls in 300 ms, {has_descriptor}");
    });
}

#[test]
fn an_invalid_name_is_refused_or_harmless() {
    over_each(async |choice| {
        let mut endpoint = Endpoint::open(choice, &Config::new(64)).unwrap();
        for name in [vec![], vec![0; 512], vec![0xff; 513], vec![b'x'; 4_000]] {
            if let Ok(peer) = endpoint.insert(&name) {
                let _ = endpoint.send(peer, &[b"to nobody"]);
                endpoint.progress();
            }
        }
        let name = endpoint.name().to_vec();
        assert_eq!(endpoint.insert(&name).unwrap(), endpoint.insert(&name).unwrap());
    });
}

#[test]
fn a_missing_provider_is_named() {
    match Endpoint::open(&Choice::any().provider("nothing"), &Config::new(64)) {
        Err(error) => eprintln!("{error}"),
        Ok(_) => panic!("there is a provider called `nothing`"),
    }
    match providers(&Choice::any().provider("nothing")) {
        Ok(found) => assert_eq!(found, []),
        Err(error) => eprintln!("skipped: {error}"),
    }
}
