//! Tests axum, hyper, tower and WebSocket over streams of nodes, over shared memory and over UDP.

mod nodes;

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::sse::{Event, Sse};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use midplane::{Connector, Node, PeerName, Stream};
use nodes::{Over, cluster, nodes, over_each};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite;
use tower::{Service, ServiceBuilder, ServiceExt};

const LARGE: usize = 4 << 20;

fn large() -> Bytes {
    (0..LARGE).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

fn app() -> Router {
    let who = |ConnectInfo(peer): ConnectInfo<PeerName>| async move { peer.name };
    Router::new()
        .route("/hello", get(|| async { "hello" }))
        .route("/who", get(who))
        .route("/large", get(|| async { large() }))
        .route(
            "/echo",
            post(|body: Body| async { body }).layer(axum::extract::DefaultBodyLimit::disable()),
        )
        .route("/events", get(|| async { Sse::new(futures::stream::iter((0..100).map(event))) }))
        .route("/ws", any(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo_messages) }))
}

fn event(number: u32) -> Result<Event, Infallible> {
    Ok(Event::default().data(format!("event {number}")))
}

async fn echo_messages(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.next().await {
        let is_close = matches!(message, Message::Close(_));
        if is_close || socket.send(message).await.is_err() {
            return;
        }
    }
}

async fn serve(node: &Node) {
    let listener = node.listen("web").await.unwrap();
    let service = app().into_make_service_with_connect_info::<PeerName>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

async fn http1(stream: Stream) -> Sender {
    let (sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

fn request(method: &str, path: &str, body: impl Into<Bytes>) -> hyper::Request<Full<Bytes>> {
    let request = hyper::Request::builder().method(method).uri(format!("http://web{path}"));
    request.header("host", "web").body(Full::new(body.into())).unwrap()
}

async fn ask(sender: &mut Sender, request: hyper::Request<Full<Bytes>>) -> Bytes {
    sender.ready().await.unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert!(answer.status().is_success(), "{answer:?}");
    answer.into_body().collect().await.unwrap().to_bytes()
}

over_each! {
    async fn axum_answers_hello_and_knows_the_client(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut sender = http1(client.connect("web").await.unwrap()).await;
        for _ in 0..1_000 {
            assert_eq!(ask(&mut sender, request("GET", "/hello", "")).await, "hello");
        }
        assert_eq!(ask(&mut sender, request("GET", "/who", "")).await, "client");
    }

    async fn axum_sends_and_takes_bodies_of_4_mib(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut sender = http1(client.connect("web").await.unwrap()).await;
        for _ in 0..3 {
            assert!(ask(&mut sender, request("GET", "/large", "")).await == large());
            assert!(ask(&mut sender, request("POST", "/echo", large())).await == large());
        }
    }

    async fn axum_serves_http2_with_many_requests_at_once(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let stream = TokioIo::new(client.connect("web").await.unwrap());
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let asked = (0..64).map(|number| {
            let mut sender = sender.clone();
            async move {
                let body = vec![number as u8; 100_000];
                sender.ready().await.unwrap();
                let answer = sender.send_request(request("POST", "/echo", body.clone())).await;
                assert!(answer.unwrap().into_body().collect().await.unwrap().to_bytes() == body);
            }
        });
        futures::future::join_all(asked).await;
    }

    async fn axum_sends_events(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut sender = http1(client.connect("web").await.unwrap()).await;
        let text = ask(&mut sender, request("GET", "/events", "")).await;
        let expected: String = (0..100).map(|number| format!("data: event {number}\n\n")).collect();
        assert_eq!(text, expected);
    }

    async fn axum_upgrades_to_websocket(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let stream = client.connect("web").await.unwrap();
        let (mut socket, _) = tokio_tungstenite::client_async("ws://web/ws", stream).await.unwrap();
        for length in [0, 1, 125, 126, 65_535, 65_536, 1 << 20] {
            let message = tungstenite::Message::binary(vec![7; length]);
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
    }

    async fn axum_shuts_down_gracefully(over) {
        let (service, client) = nodes(over).await;
        let listener = service.listen("web").await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (entered, mut entries) = mpsc::unbounded_channel();
        let (go, going) = tokio::sync::watch::channel(false);
        let slow = move || {
            let (entered, mut going) = (entered.clone(), going.clone());
            async move {
                entered.send(()).unwrap();
                going.wait_for(|go| *go).await.unwrap();
                "slow"
            }
        };
        let app = Router::new().route("/slow", get(slow));
        let serving = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            axum::serve(listener, app).with_graceful_shutdown(stopped).await.unwrap();
        });
        let mut sender = http1(client.connect("web").await.unwrap()).await;
        let asked = tokio::spawn(async move { ask(&mut sender, request("GET", "/slow", "")).await });
        entries.recv().await.unwrap();
        stop.send(()).unwrap();
        go.send(true).unwrap();
        assert_eq!(asked.await.unwrap(), "slow");
        serving.await.unwrap();
        service.shutdown().await;
    }

    async fn hyper_serves_and_upgrades(over) {
        let (service, client) = nodes(over).await;
        let mut listener = service.listen("web").await.unwrap();
        let upgrade = |mut request: hyper::Request<hyper::body::Incoming>| async move {
            tokio::spawn(async move {
                let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
                let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
                tokio::io::copy(&mut from, &mut to).await.unwrap();
                to.shutdown().await.unwrap();
            });
            let answer = hyper::Response::builder().status(101).header("upgrade", "raw");
            Ok::<_, Infallible>(answer.body(Full::new(Bytes::new())).unwrap())
        };
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(upgrade);
            let connection = hyper::server::conn::http1::Builder::new();
            connection.serve_connection(TokioIo::new(stream), service).with_upgrades().await.unwrap();
        });
        let mut sender = http1(client.connect("web").await.unwrap()).await;
        let mut request = request("GET", "/", "");
        request.headers_mut().insert("upgrade", "raw".parse().unwrap());
        let answer = sender.send_request(request).await.unwrap();
        let upgraded = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        let (mut from, mut to) = tokio::io::split(upgraded);
        let (sent, mut back) = (large(), Vec::new());
        let write = async {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
        };
        tokio::join!(write, async { from.read_to_end(&mut back).await.unwrap() });
        assert!(back == sent);
    }

    async fn tower_retries_times_out_and_balances_connections(over) {
        let (service, client) = nodes(over).await;
        let web = client.connector("web");
        let nobody = ServiceBuilder::new()
            .timeout(Duration::from_millis(50))
            .service(tower::service_fn(move |()| web.clone().oneshot(())));
        let error = nobody.oneshot(()).await.unwrap_err();
        assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
        serve(&service).await;
        let mut retried = ServiceBuilder::new().retry(Again(3)).service(Flaky(client.connector("web"), 2));
        let stream = retried.ready().await.unwrap().call(()).await.unwrap();
        assert_eq!(ask(&mut http1(stream).await, request("GET", "/hello", "")).await, "hello");
        let both = (0..2).map(|key| (key, tower::load::Constant::new(client.connector("web"), key)));
        let both: Vec<_> = both.map(|(key, one)| Ok::<_, Infallible>(tower::discover::Change::Insert(key, one))).collect();
        let mut balance = tower::balance::p2c::Balance::<_, ()>::new(futures::stream::iter(both));
        for _ in 0..8 {
            let stream = balance.ready().await.unwrap().call(()).await.unwrap();
            assert_eq!(ask(&mut http1(stream).await, request("GET", "/hello", "")).await, "hello");
        }
    }
}

/// A connector that fails the given number of times before it connects.
#[derive(Clone)]
struct Flaky(Connector, u32);

impl Service<()> for Flaky {
    type Response = Stream;
    type Error = String;
    type Future = futures::future::BoxFuture<'static, Result<Stream, String>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), String>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        if let Some(left) = self.1.checked_sub(1) {
            self.1 = left;
            return Box::pin(async { Err("not yet".to_owned()) });
        }
        let connected = self.0.clone().oneshot(());
        Box::pin(async { connected.await.map_err(|error| error.to_string()) })
    }
}

#[derive(Clone)]
struct Again(u32);

impl<T, E> tower::retry::Policy<(), T, E> for Again {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, (): &mut (), result: &mut Result<T, E>) -> Option<Self::Future> {
        (result.is_err() && self.0 > 0).then(|| {
            self.0 -= 1;
            std::future::ready(())
        })
    }

    fn clone_request(&mut self, (): &()) -> Option<()> {
        Some(())
    }
}

#[tokio::test]
async fn a_client_with_a_pool_connects_again_when_its_service_was_restarted() {
    let builder = cluster();
    let client = builder.clone().name("client").start().await.unwrap();
    let pool: Client<Connector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build(client.connector("web"));
    for attempt in 0..2 {
        let service = builder.clone().start().await.unwrap();
        serve(&service).await;
        let answer = loop {
            match pool.request(request("GET", "/who", "")).await {
                Ok(answer) => break answer,
                Err(error) if attempt == 0 => panic!("{error}"),
                Err(_) => tokio::task::yield_now().await,
            }
        };
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "client");
        drop(service);
    }
}
