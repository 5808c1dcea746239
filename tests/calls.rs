//! Tests calls over each transport: answers, errors, deadlines, cancellation, limits, and peers that end.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Waker};
use std::time::Duration;

use midplane::call::{CallError, Client, Context, Limits, Serving};
use midplane::{ErrorKind, Node, NodeBuilder};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore, mpsc};
use tower::service_fn;

use crate::node::{Over, nodes, over_each};

#[derive(Clone, Debug, Deserialize, Serialize)]
enum Request {
    Put(String, Vec<u8>),
    Get(String),
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
enum KvError {
    NotFound { key: String },
}

/// The error type of services that have no errors.
#[derive(Debug, Deserialize, Serialize, thiserror::Error)]
enum Never {}

async fn both(service: NodeBuilder, client: NodeBuilder) -> (Node, Node) {
    let service = service.name("service").start().await.unwrap();
    (service, client.name("client").start().await.unwrap())
}

/// A service that reports each call, and answers with the request once it is opened.
#[derive(Clone, Default)]
struct Gate {
    called: Arc<Notify>,
    open: Arc<Notify>,
    /// Calls that have begun and not ended.
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn serve(&self, node: &Node, limits: Limits) -> Serving {
        let gate = self.clone();
        let service = service_fn(move |number: u32| {
            let gate = gate.clone();
            async move {
                let inside = gate.inside.fetch_add(1, Ordering::SeqCst) + 1;
                gate.most.fetch_max(inside, Ordering::SeqCst);
                let _inside = Inside(Arc::clone(&gate.inside));
                gate.called.notify_one();
                gate.open.notified().await;
                Ok::<_, Never>(number)
            }
        });
        node.serve_with("gate", service, limits).unwrap()
    }

    async fn is_empty(&self) {
        while self.inside.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    }
}

/// Serves a service that answers with its number.
fn numbered(node: &Node, number: u32) -> Serving {
    let service = service_fn(move |_: u32| async move { Ok::<_, Never>(number) });
    node.serve("gate", service).unwrap()
}

fn gate_client(node: &Node) -> Client<u32, u32, Never> {
    node.client("gate")
}

over_each! {
    async fn a_service_answers_and_its_errors_keep_their_type(over) {
        let (service, client) = nodes("kv", over);
        let (service, client) = both(service, client).await;
        let store: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
        let kv = service_fn(move |request: Request| {
            let store = Arc::clone(&store);
            async move {
                match request {
                    Request::Put(key, value) => {
                        store.lock().unwrap().insert(key, value);
                        Ok(Vec::new())
                    }
                    Request::Get(key) => {
                        store.lock().unwrap().get(&key).cloned().ok_or(KvError::NotFound { key })
                    }
                }
            }
        });
        let _serving = service.serve("kv", kv).unwrap();
        let kv = client.client::<Request, Vec<u8>, KvError>("kv");
        let long: Vec<u8> = (0..700_000_u32).map(|at| at as u8).collect();
        for value in [b"1".to_vec(), long, Vec::new()] {
            assert!(kv.call(Request::Put("a".into(), value.clone())).await.unwrap().is_empty());
            assert!(kv.call(Request::Get("a".into())).await.unwrap() == value);
        }
        let error = kv.call(Request::Get("b".into())).await.unwrap_err();
        assert!(matches!(error, CallError::Service(KvError::NotFound { key }) if key == "b"));
    }

    async fn a_call_that_waits_stops_no_other_and_many_run_at_once(over) {
        let (service, client) = nodes("line", over);
        let (service, client) = both(service, client).await;
        let gate = Gate::default();
        let serving = gate.serve(&service, Limits::default());
        let _other = service.serve("quick", service_fn(|x: u32| async move { Ok::<_, Never>(x) }));
        let calls: Vec<_> = (0..50)
            .map(|number| {
                let client = gate_client(&client);
                tokio::spawn(async move { client.call(number).await.unwrap() })
            })
            .collect();
        while gate.inside.load(Ordering::SeqCst) < 50 {
            gate.called.notified().await;
        }
        assert_eq!(serving.calls(), 50);
        let quick = client.client::<u32, u32, Never>("quick");
        for number in 0..10 {
            assert_eq!(quick.call(number).await.unwrap(), number);
        }
        gate.open.notify_waiters();
        for (number, call) in (0..).zip(calls) {
            assert_eq!(call.await.unwrap(), number);
        }
    }

    async fn a_call_that_is_dropped_at_any_poll_frees_both_sides(over) {
        let (service, client) = nodes("cancel", over);
        let (service, client) = both(service, client).await;
        let gate = Gate::default();
        let serving = gate.serve(&service, Limits::default());
        let client = gate_client(&client).limits(Limits::default().concurrency(1));
        for polls in 0..40 {
            let mut call = Box::pin(client.call(polls));
            for _ in 0..polls {
                let mut task = Task::from_waker(Waker::noop());
                assert!(call.as_mut().poll(&mut task).is_pending());
                tokio::task::yield_now().await;
            }
            drop(call);
        }
        // A call that the service has certainly begun.
        let call = tokio::spawn({ let client = client.clone(); async move { client.call(7).await } });
        while gate.inside.load(Ordering::SeqCst) == 0 {
            gate.called.notified().await;
        }
        call.abort();
        gate.is_empty().await;
        while serving.calls() > 0 {
            tokio::task::yield_now().await;
        }
        // The client's only permit is free again.
        let mut call = pin!(client.call(9));
        loop {
            tokio::select! {
                answer = &mut call => break assert_eq!(answer.unwrap(), 9),
                () = gate.called.notified() => gate.open.notify_waiters(),
            }
        }
    }

    async fn a_call_ends_at_its_deadline_on_both_sides(over) {
        let (service, client) = nodes("deadline", over);
        let (service, client) = both(service, client).await;
        let gate = Gate::default();
        let _serving = gate.serve(&service, Limits::default());
        let client = gate_client(&client);
        let short = client.clone().timeout(Duration::from_millis(100));
        assert!(matches!(short.call(1).await, Err(CallError::Deadline)));
        gate.is_empty().await;
        // The earlier of the two deadlines applies.
        let context = Context::new().with_timeout(Duration::from_millis(100));
        assert!(matches!(context.scope(client.call(1)).await, Err(CallError::Deadline)));
        gate.is_empty().await;
        // A call that waits for a permit has a deadline as well.
        let one = short.limits(Limits::default().concurrency(1));
        let (a, b) = tokio::join!(one.call(1), one.call(2));
        assert!(matches!((a, b), (Err(CallError::Deadline), Err(CallError::Deadline))));
    }

    async fn deadline_trace_and_caller_travel_through_services(over) {
        const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let (service, client) = nodes("trace", over);
        let (service, client) = both(service, client).await;
        let (seen, mut saw) = mpsc::unbounded_channel();
        let inner = service_fn(move |()| {
            let seen = seen.clone();
            async move {
                seen.send(Context::current().unwrap()).unwrap();
                Ok::<_, Never>(())
            }
        });
        let _inner = client.serve("inner", inner).unwrap();
        let next = service.client::<(), (), Never>("inner");
        let outer = service_fn(move |()| {
            let next = next.clone();
            async move { next.call(()).await.map_err(|error| error.to_string()) }
        });
        let _outer = service.serve("outer", outer).unwrap();
        let outer = client.client::<(), (), String>("outer");
        outer.call(()).await.unwrap();
        let context = saw.recv().await.unwrap();
        assert_eq!((context.traceparent(), context.tracestate()), (None, ""));
        let within = Duration::from_secs(20);
        let context = Context::new().with_trace(PARENT, "vendor=1").with_timeout(within);
        context.clone().scope(outer.call(())).await.unwrap();
        let arrived = saw.recv().await.unwrap();
        assert_eq!((arrived.traceparent(), arrived.tracestate()), (Some(PARENT), "vendor=1"));
        assert_eq!(arrived.peer().unwrap().name, "service");
        // After two hops. Each sends the remaining time in microseconds, and the time on the way extends the deadline.
        let slip = arrived.deadline().unwrap().duration_since(context.deadline().unwrap());
        assert!(slip < Duration::from_secs(5), "{slip:?}");
    }

    async fn no_more_calls_run_at_once_than_either_side_allows(over) {
        let (service, client) = nodes("limit", over);
        let (service, client) = both(service, client).await;
        let gate = Gate::default();
        let _serving = gate.serve(&service, Limits::default().concurrency(3));
        let run = async |client: Client<u32, u32, Never>| {
            let ended = Arc::new(Semaphore::new(0));
            let calls: Vec<_> = (0..12)
                .map(|number| {
                    let (client, ended) = (client.clone(), Arc::clone(&ended));
                    tokio::spawn(async move {
                        assert_eq!(client.call(number).await.unwrap(), number);
                        ended.add_permits(1);
                    })
                })
                .collect();
            while ended.available_permits() < 12 {
                gate.open.notify_waiters();
                tokio::task::yield_now().await;
            }
            for call in calls {
                call.await.unwrap();
            }
            gate.most.swap(0, Ordering::SeqCst)
        };
        let client = gate_client(&client);
        let narrow = client.clone().limits(Limits::default().concurrency(2));
        assert!(run(client).await <= 3);
        assert!(run(narrow).await <= 2);
    }

    async fn a_call_whose_peer_ends_fails_or_is_retried_at_another(over) {
        let (service, client) = nodes("killed", over);
        let first = service.clone().start().await.unwrap();
        let gate = Gate::default();
        let serving = gate.serve(&first, Limits::default());
        let client = client.start().await.unwrap();
        let calls = [gate_client(&client), gate_client(&client).idempotent()]
            .map(|client| tokio::spawn(async move { client.call(1).await }));
        while gate.inside.load(Ordering::SeqCst) < 2 {
            gate.called.notified().await;
        }
        drop((serving, first));
        let second = loop {
            match service.clone().start().await {
                Ok(node) => break node,
                Err(error) => assert_eq!(error.kind(), ErrorKind::InUse),
            }
            tokio::task::yield_now().await;
        };
        let _serving = numbered(&second, 2);
        let [once, again] = calls;
        assert!(matches!(once.await.unwrap(), Err(CallError::Reset(_))));
        assert_eq!(again.await.unwrap().unwrap(), 2);
        gate.is_empty().await;
    }

    async fn messages_that_are_too_large_or_of_another_type_are_errors_that_say_so(over) {
        let (service, client) = nodes("large", over);
        let (service, client) = both(service, client).await;
        let limits = Limits::default().max_message(10_000);
        let grow = |length: (u32, String)| async move { Ok::<_, Never>("x".repeat(length.0 as usize)) };
        let _serving = service.serve_with("grow", service_fn(grow), limits).unwrap();
        let grow = client.client::<(u32, String), String, Never>("grow");
        let small = grow.clone().limits(Limits::default().max_message(1_000));
        assert_eq!(grow.call((9_000, String::new())).await.unwrap().len(), 9_000);
        let is_large = |result: Result<String, CallError<Never>>, of, most| {
            matches!(result, Err(CallError::TooLarge { what, limit }) if what == of && limit == most)
        };
        // One request that fits into the transport's buffer, and one that does not.
        for length in [20_000, 900_000] {
            assert!(is_large(grow.call((1, "y".repeat(length))).await, "request", 10_000));
        }
        assert!(is_large(grow.call((20_000, String::new())).await, "response", 10_000));
        assert!(is_large(small.call((1, "y".repeat(2_000))).await, "request", 1_000));
        assert!(is_large(small.call((2_000, String::new())).await, "response", 1_000));
        assert_eq!(small.call((10, String::new())).await.unwrap().len(), 10);
        let other = client.client::<u8, String, Never>("grow");
        assert!(matches!(other.call(1).await, Err(CallError::Decode { what: "request" })));
        let other = client.client::<(u32, String), (u64, u64, u64), Never>("grow");
        let error = other.call((1, String::new())).await.unwrap_err();
        assert!(matches!(error, CallError::Decode { what: "response" }));
    }

    async fn a_stream_to_a_service_of_calls_and_the_reverse_say_what_to_do(over) {
        let (service, client) = nodes("kinds", over);
        let (service, client) = both(service, client.connect_timeout(Duration::ZERO)).await;
        let _serving = numbered(&service, 1);
        let _listener = service.listen("bytes").await.unwrap();
        let text = loop {
            let error = client.connect("gate").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoService);
            let text = error.to_string();
            if text.contains("asked") && text.contains("gate") && text.contains("bytes") {
                break text;
            }
        };
        assert!(text.contains("service offers it as calls: use `client`"), "{text}");
        let error = client.client::<u32, u32, Never>("bytes").call(1).await.unwrap_err();
        assert!(error.is_undelivered());
        assert!(error.to_string().contains("service offers it as streams: use `connect`"), "{error}");
        for name in ["midplane:call:gate", "midplane:messages"] {
            assert_eq!(client.connect(name).await.unwrap_err().kind(), ErrorKind::Config);
            assert_eq!(client.listen(name).await.unwrap_err().kind(), ErrorKind::Config);
        }
        let error = service.serve("gate", service_fn(|(): ()| async { Ok::<_, Never>(()) }));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InUse);
    }

    async fn idle_streams_delay_no_shutdown(over) {
        let (service, client) = nodes("idle", over);
        let long = Duration::from_secs(3_600);
        let (service, client) = both(service.drain(long), client.drain(long)).await;
        let _serving = (numbered(&service, 1), numbered(&client, 2));
        for node in [&client, &service] {
            gate_client(node).call(0).await.unwrap();
        }
        let (there, back) = (gate_client(&client), gate_client(&service));
        assert_eq!(there.call(0).await.unwrap(), 1);
        assert_eq!(back.call(0).await.unwrap(), 2);
        service.shutdown().await;
        client.shutdown().await;
    }

    async fn a_client_is_a_tower_service(over) {
        use tower::ServiceExt;
        let (service, client) = nodes("tower", over);
        let (service, client) = both(service, client).await;
        let _serving = numbered(&service, 5);
        let client = gate_client(&client).limits(Limits::default().concurrency(1));
        let mapped = client.map_request(|text: String| text.len() as u32).map_response(|x| x + 1);
        for _ in 0..3 {
            assert_eq!(mapped.clone().oneshot("hello".into()).await.unwrap(), 6);
        }
    }
}

#[tokio::test]
async fn a_service_that_was_dropped_may_be_offered_again_at_once() {
    let cluster = format!("again-{}", std::process::id());
    let node = Node::builder().cluster(cluster).start().await.unwrap();
    let first = numbered(&node, 1);
    let service = service_fn(|_: u32| async { Ok::<_, Never>(0_u32) });
    assert_eq!(node.serve("gate", service).unwrap_err().kind(), ErrorKind::InUse);
    drop(first);
    let second = numbered(&node, 2);
    assert_eq!(second.calls(), 0);
}

/// A value that serde can't encode in the format of calls.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Flat {
    #[serde(flatten)]
    more: BTreeMap<String, u32>,
}

/// Regression: such a value was reported as too large.
#[tokio::test]
async fn a_value_that_serde_cannot_encode_is_an_error_that_says_so() {
    let (service, client) = nodes("flat", Over::Shm);
    let (service, client) = both(service, client).await;
    let flat = service_fn(|_: u32| async { Ok::<_, Never>(Flat::default()) });
    let _serving = service.serve("flat", flat).unwrap();
    let error = client.client::<u32, Flat, Never>("flat").call(1).await.unwrap_err();
    assert!(matches!(error, CallError::Encode { what: "response" }), "{error}");
    let error = client.client::<Flat, u32, Never>("flat").call(Flat::default()).await.unwrap_err();
    assert!(matches!(error, CallError::Encode { what: "request" }), "{error}");
    assert!(error.to_string().contains("flatten"), "{error}");
    assert!(error.is_undelivered());
}

/// Regression: a service that was offered in a runtime of its own answered no call once that had ended.
#[test]
fn a_service_answers_after_the_runtime_in_which_it_was_offered_has_ended() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let main = runtime();
    let (service, client) = nodes("call-runtimes", Over::Udp);
    let (service, client) = main.block_on(both(service, client));
    let brief = runtime();
    let _serving = brief.block_on(async { numbered(&service, 3) });
    drop(brief);
    assert_eq!(main.block_on(gate_client(&client).call(0)).unwrap(), 3);
}
