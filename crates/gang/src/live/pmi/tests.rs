//! A client that sends valid and invalid commands of the protocol.

use std::io::{BufRead, BufReader, Write};

use proptest::prelude::*;
use tokio::sync::mpsc;

use super::*;

/// A rank's end of its socket, and the events that its daemon receives.
struct Client {
    stream: BufReader<UnixStream>,
    said: mpsc::UnboundedReceiver<RankEvent>,
}

impl Client {
    fn new(job: &PmiJob) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (say, said) = mpsc::unbounded_channel();
        job.serve(theirs.into(), move |event| drop(say.send(event)));
        Self { stream: BufReader::new(ours), said }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Reads the server's reply; yields, so that the server can run on the same thread.
    async fn reply(&mut self) -> String {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let mut line = String::new();
        while !line.ends_with('\n') {
            if self.stream.read_line(&mut line).is_err() {
                tokio::task::yield_now().await;
            }
        }
        line
    }

    async fn ask(&mut self, line: &str) -> String {
        self.say(format!("{line}\n").as_bytes());
        self.reply().await
    }
}

fn session() -> Session {
    Session::new(Arc::clone(&PmiJob::new("gang-1", &[0]).shared))
}

#[test]
fn what_mpich_sends_is_understood() {
    let reply = |text: &str| Answer::Reply(format!("cmd={text}\n"));
    let abort = |code, message: &str| Answer::Abort { code, message: message.into() };
    let init = "response_to_init rc=0 pmi_version=1 pmi_subversion=1";
    let maxes = "maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024";
    for (line, answer) in [
        ("cmd=init pmi_version=1 pmi_subversion=1", reply(init)),
        ("cmd=get_maxes", reply(maxes)),
        ("cmd=get_appnum ", reply("appnum rc=0 appnum=0")),
        ("cmd=get_my_kvsname", reply("my_kvsname rc=0 kvsname=gang-1")),
        ("cmd=get_universe_size", reply("universe_size rc=0 size=1")),
        ("cmd=get kvsname=gang-1 key=P0", reply("get_result rc=1 msg=not_found")),
        ("cmd=put kvsname=gang-1 key=a value=b=c", reply("put_result rc=0")),
        ("cmd=barrier_in", Answer::Barrier),
        ("cmd=finalize\r", reply("finalize_ack rc=0")),
        ("cmd=abort exitcode=3 message=no more room", abort(3, "no more room")),
        ("cmd=abort exitcode=x", abort(1, "")),
        ("mcmd=spawn", Answer::Nothing),
        ("cmd=lookup_name service=a", reply("lookup_result rc=1 msg=no_services")),
    ] {
        assert_eq!(session().answer(line), answer, "{line}");
    }
}

#[test]
fn what_is_no_command_is_refused_with_what_is_wrong() {
    let long = format!("cmd=get kvsname=a key={}", "k".repeat(KEY_BYTES + 1));
    let none = || Answer::refused("it sent a line to PMI that is no command");
    let unknown = |command: &str| Answer::refused(format!("PMI-1 has no command {command:?}"));
    let wrong = |what: &str| Answer::Reply(format!("cmd=error rc=1 msg={what}\n"));
    for (line, answer) in [
        ("", none()),
        ("init", none()),
        ("cmd=", unknown("")),
        ("cmd=get_all", unknown("get_all")),
        ("cmd=init", wrong("no_pmi_version")),
        ("cmd=put kvsname=a key=b", wrong("no_value")),
        ("cmd=put kvsname=a key=b value=", wrong("length_of_value")),
        (&long, wrong("length_of_key")),
    ] {
        assert_eq!(session().answer(line), answer, "{line}");
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn what_a_rank_puts_is_known_to_all_after_the_barrier() {
    run(async {
        // Two hosts of a job: a pair that one of them puts reaches the other only through the root.
        let jobs = [0, 1].map(|_| PmiJob::new("gang-7", &[0, 1]));
        let [mut a, mut b] = [Client::new(&jobs[0]), Client::new(&jobs[1])];
        let init = "cmd=init pmi_version=1 pmi_subversion=1";
        let first = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n";
        assert_eq!((a.ask(init).await.as_str(), b.ask(init).await.as_str()), (first, first));
        let mapping = a.ask("cmd=get kvsname=gang-7 key=PMI_process_mapping").await;
        assert_eq!(mapping, "cmd=get_result rc=0 value=(vector,(0,1,1),(1,1,1))\n");
        assert_eq!(a.ask("cmd=put kvsname=gang-7 key=a value=x=1").await, "cmd=put_result rc=0\n");
        let get = "cmd=get kvsname=gang-7 key=a";
        assert_eq!(b.ask(get).await, "cmd=get_result rc=1 msg=not_found\n");
        a.say(b"cmd=barrier_in\n");
        b.say(b"cmd=barrier_in\n");
        let put = vec![("a".to_owned(), "x=1".to_owned())];
        assert_eq!(a.said.recv().await, Some(RankEvent::BarrierIn(put.clone())));
        assert_eq!(b.said.recv().await, Some(RankEvent::BarrierIn(Vec::new())));
        jobs.iter().for_each(|job| job.barrier_out(put.clone()));
        assert_eq!(a.reply().await, "cmd=barrier_out rc=0\n");
        assert_eq!(b.reply().await, "cmd=barrier_out rc=0\n");
        assert_eq!(b.ask(get).await, "cmd=get_result rc=0 value=x=1\n");
        assert_eq!(b.ask("cmd=finalize").await, "cmd=finalize_ack rc=0\n");
    });
}

/// Regression: outside a barrier, a process that outlived its job could end the next job of the same number.
#[test]
fn nothing_serves_a_rank_whose_job_has_ended() {
    run(async {
        for is_inside in [true, false] {
            let job = PmiJob::new("gang-7", &[0, 0]);
            let mut client = Client::new(&job);
            if is_inside {
                client.say(b"cmd=barrier_in\n");
                assert_eq!(client.said.recv().await, Some(RankEvent::BarrierIn(Vec::new())));
            }
            drop(job);
            assert_eq!(client.said.recv().await, None);
        }
    });
}

#[test]
fn what_gang_jobs_do_not_have_is_refused() {
    run(async {
        let job = PmiJob::new("gang-7", &[0]);
        let mut client = Client::new(&job);
        for (line, word) in [
            ("cmd=init pmi_version=2", "cmd=response_to_init rc=1"),
            ("cmd=get kvsname=other key=PMI_process_mapping", "cmd=get_result rc=1"),
            ("cmd=put kvsname=other key=a value=b", "cmd=put_result rc=1"),
            ("cmd=barrier_in group=0,1", "cmd=barrier_out rc=1"),
            ("cmd=publish_name service=a port=b", "cmd=publish_result rc=1"),
            ("mcmd=spawn\nnprocs=1\nexecname=/bin/true\nendcmd", "cmd=spawn_result rc=1"),
            ("cmd=put kvsname=gang-7", "cmd=error rc=1"),
        ] {
            let reply = client.ask(line).await;
            assert!(reply.starts_with(word), "{line}: {reply}");
        }
    });
}

#[test]
fn a_rank_puts_a_bounded_number_of_pairs_before_a_barrier() {
    run(async {
        let job = PmiJob::new("gang-7", &[0]);
        let mut client = Client::new(&job);
        for number in 0..PAIRS {
            let reply = client.ask(&format!("cmd=put kvsname=gang-7 key={number} value=v")).await;
            assert_eq!(reply, "cmd=put_result rc=0\n");
        }
        let reply = client.ask("cmd=put kvsname=gang-7 key=k value=v").await;
        assert_eq!(reply, "cmd=put_result rc=1 msg=more_than_256_before_a_barrier\n");
    });
}

#[test]
fn a_line_without_end_and_one_that_is_no_command_end_the_job() {
    run(async {
        for (bytes, why) in [
            (vec![b'c'; LINE_BYTES], "more than 4096 bytes"),
            (b"\xff\n".to_vec(), "no text"),
            (b"hello\n".to_vec(), "no command"),
            (b"cmd=mput\n".to_vec(), "PMI-1 has no command \"mput\""),
        ] {
            let job = PmiJob::new("gang-7", &[0]);
            let mut client = Client::new(&job);
            client.say(&bytes);
            let Some(RankEvent::Aborted { code: 1, message }) = client.said.recv().await else {
                panic!("{why}")
            };
            assert!(message.contains(why), "{message}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_are_answered_or_end_the_job(bytes in proptest::collection::vec(any::<u8>(), 0..9_000)) {
        run(async {
            let job = PmiJob::new("gang-7", &[0]);
            let mut client = Client::new(&job);
            client.stream.get_ref().set_nonblocking(true).unwrap();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match client.stream.get_mut().write(rest) {
                    Ok(sent) => rest = &rest[sent..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::task::yield_now().await;
                    }
                    // Fails if the server has closed its end.
                    Err(_) => break,
                }
            }
            client.stream.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
            // The daemon receives only the event that ends the job, and no further ones.
            while let Some(event) = client.said.recv().await {
                assert!(matches!(event, RankEvent::Aborted { code: 1, .. }), "{event:?}");
            }
        });
    }

    #[test]
    fn a_put_is_read_as_it_was_written(key in "[!-<>-~]{1,64}", value in "[!-~]{1,1024}") {
        let mut session = session();
        session.answer(&format!("cmd=put kvsname=gang-1 key={key} value={value}"));
        prop_assert_eq!(&session.pairs, &[(key.clone(), value.clone())]);
        let read = session.answer(&format!("cmd=get kvsname=gang-1 key={key}"));
        prop_assert_eq!(read, Answer::Reply(format!("cmd=get_result rc=0 value={value}\n")));
    }

    #[test]
    fn no_text_is_read_beyond_its_bounds(
        text in "(cmd=)?(put kvsname=gang-1|get|abort|init|barrier_in)?[ -~]{0,200}|\\PC{0,200}",
    ) {
        let mut session = session();
        session.answer(&text);
        for (key, value) in &session.pairs {
            prop_assert!((1..=KEY_BYTES).contains(&key.len()));
            prop_assert!((1..=VALUE_BYTES).contains(&value.len()));
        }
    }

    #[test]
    fn the_mapping_tells_each_rank_s_host(hosts in proptest::collection::vec(0_u16..4, 1..30)) {
        let text = mapping(&hosts);
        let inner = text.strip_prefix("(vector,(").unwrap().strip_suffix("))").unwrap();
        let blocks = inner.split("),(").map(|block| {
            block.split(',').map(|word| word.parse().unwrap()).collect::<Vec<usize>>()
        });
        let read: Vec<usize> =
            blocks.flat_map(|block| std::iter::repeat_n(block[0], block[1] * block[2])).collect();
        prop_assert_eq!(read.len(), hosts.len());
        for (a, b) in (0..hosts.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
            prop_assert_eq!(read[a] == read[b], hosts[a] == hosts[b]);
        }
    }
}
