//! Sinks and streams of messages.

use super::*;

/// Whatever is dropped at whichever poll: every item comes once, in order, and all room comes back.
#[test]
fn lanes_that_are_dropped_at_any_poll_lose_nothing() {
    for length in [10, 3_000] {
        let views = both(
            narrow(),
            move |world| async move {
                let mut receiver = Receiver::new(world, rank(1), tag(4));
                for n in 0..30 {
                    for polls in 0.. {
                        let next = async {
                            if n % 2 == 0 {
                                return receiver.next().await.unwrap();
                            }
                            receiver.receive().await.map(Option::unwrap)
                        };
                        if let Some(got) = at_most(polls, next).await {
                            assert!(got.unwrap() == text(n, length), "item {n}");
                            break;
                        }
                    }
                }
                assert_eq!(receiver.next().await, None);
                assert!(receiver.is_ended());
            },
            move |world| async move {
                let mut sender = Sender::new(world, rank(0), tag(4)).depth(2);
                for n in 0..30 {
                    for polls in 0.. {
                        // A permit that is not used has taken nothing.
                        let _ = at_most(polls, sender.reserve()).await;
                        let sent = async {
                            let permit = sender.reserve().await.unwrap();
                            permit.send(&text(n, length)).unwrap();
                        };
                        if at_most(polls, sent).await.is_some() {
                            break;
                        }
                        let _ = at_most(polls, sender.flush()).await;
                        assert!(sender.under_way() <= 2);
                    }
                }
                let mut polls = 0;
                while at_most(polls, sender.close()).await.is_none() {
                    polls += 1;
                }
                assert_eq!(sender.reserve().await.err(), Some(DeliveryError::Closed));
            },
        );
        settled(&views);
    }
}

#[test]
fn a_sender_waits_while_nobody_receives() {
    let sent = Arc::new(AtomicU32::new(0));
    let (here, there) = (Arc::clone(&sent), sent);
    let views = both(
        narrow(),
        move |world| async move {
            let mut most = 0;
            let mut receiver = Receiver::new(world, rank(1), tag(4));
            for n in 0..200 {
                if n % 50 == 0 {
                    turns_of_others(300).await;
                    most = most.max(there.load(Ordering::Relaxed) - n);
                }
                assert_eq!(receiver.next().await.unwrap().unwrap(), text(n, 300));
            }
            // A window of 4,096 bytes holds 11 of them; 4 are under way.
            assert!((4..=16).contains(&most), "{most} were on their way");
            assert_eq!(receiver.next().await, None);
        },
        move |world| async move {
            let mut sender = Sender::new(world, rank(0), tag(4)).depth(4);
            for n in 0..200 {
                SinkExt::feed(&mut sender, text(n, 300).into()).await.unwrap();
                here.fetch_add(1, Ordering::Relaxed);
            }
            SinkExt::close(&mut sender).await.unwrap();
        },
    );
    settled(&views);
}
