//! Tests tonic over streams of nodes, over shared memory and over UDP: each kind of method, deadlines, cancellation.

mod nodes;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use midplane::{Node, PeerName};
use midplane_foreign::grpc::Number;
use midplane_foreign::grpc::numbers_client::NumbersClient;
use midplane_foreign::grpc::numbers_server::{Numbers, NumbersServer};
use nodes::{Over, cluster, nodes, over_each};
use tokio::sync::{Notify, Semaphore};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};

/// A value that the service never answers.
const NEVER: u64 = u64::MAX;

/// The service under test.
#[derive(Clone)]
struct Service {
    /// Notified when a request arrives that is never answered.
    entered: Arc<Notify>,
    /// One permit, which the handler of such a request holds until it is dropped.
    running: Arc<Semaphore>,
}

type Answers = Pin<Box<dyn Stream<Item = Result<Number, Status>> + Send>>;

fn number(value: u64) -> Number {
    Number { value, payload: Vec::new() }
}

#[tonic::async_trait]
impl Numbers for Service {
    async fn double(&self, request: Request<Number>) -> Result<Response<Number>, Status> {
        let peer = request.extensions().get::<PeerName>().map(|peer| peer.name.clone());
        if peer.as_deref() != Some("client") {
            return Err(Status::internal(format!("from {peer:?}")));
        }
        let Number { value, payload } = request.into_inner();
        if value == NEVER {
            let _running = self.running.acquire().await;
            self.entered.notify_one();
            std::future::pending::<()>().await;
        }
        let value = value.checked_mul(2).ok_or_else(|| Status::out_of_range("too large"))?;
        Ok(Response::new(Number { value, payload }))
    }

    type UpToStream = Answers;

    async fn up_to(&self, request: Request<Number>) -> Result<Response<Answers>, Status> {
        let Number { value, payload } = request.into_inner();
        let numbers = (0..value).map(move |value| Ok(Number { value, payload: payload.clone() }));
        Ok(Response::new(Box::pin(futures::stream::iter(numbers))))
    }

    async fn sum(&self, request: Request<Streaming<Number>>) -> Result<Response<Number>, Status> {
        let mut numbers = request.into_inner();
        let mut sum = 0;
        while let Some(number) = numbers.message().await? {
            sum += number.value;
        }
        Ok(Response::new(number(sum)))
    }

    type EchoStream = Answers;

    async fn echo(&self, request: Request<Streaming<Number>>) -> Result<Response<Answers>, Status> {
        Ok(Response::new(Box::pin(request.into_inner())))
    }
}

async fn serve(node: &Node) -> Service {
    let service = Service { entered: Arc::default(), running: Arc::new(Semaphore::new(1)) };
    let incoming = node.listen("numbers").await.unwrap().incoming();
    let server = Server::builder().add_service(NumbersServer::new(service.clone()));
    tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
    service
}

async fn channel(node: &Node) -> NumbersClient<Channel> {
    let endpoint = Endpoint::from_static("http://numbers");
    NumbersClient::new(endpoint.connect_with_connector(node.connector("numbers")).await.unwrap())
}

over_each! {
    async fn unary_calls_return_answers_and_errors(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut numbers = channel(&client).await;
        for value in 0..300 {
            let payload = vec![value as u8; 4_096];
            let asked = Number { value, payload: payload.clone() };
            let answer = numbers.double(asked).await.unwrap().into_inner();
            assert_eq!(answer, Number { value: 2 * value, payload });
        }
        let error = numbers.double(number(NEVER - 1)).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::OutOfRange, "too large"));
    }

    async fn calls_of_64_callers_share_one_connection(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let numbers = channel(&client).await;
        let callers = (0..64).map(|caller| {
            let mut numbers = numbers.clone();
            async move {
                for value in 0..20 {
                    let asked = numbers.double(number(caller * 100 + value));
                    assert_eq!(asked.await.unwrap().into_inner().value, 2 * (caller * 100 + value));
                }
            }
        });
        futures::future::join_all(callers).await;
        assert_eq!(client.peers()[0].streams, 1);
    }

    async fn streams_of_answers_and_of_requests_arrive_whole(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut numbers = channel(&client).await;
        let asked = Number { value: 500, payload: vec![7; 10_000] };
        let mut answers = numbers.up_to(asked).await.unwrap().into_inner();
        for value in 0..500 {
            let answer = answers.message().await.unwrap().unwrap();
            assert_eq!((answer.value, answer.payload), (value, vec![7; 10_000]));
        }
        assert_eq!(answers.message().await.unwrap(), None);
        let sum = numbers.sum(futures::stream::iter((0..1_000).map(number))).await.unwrap();
        assert_eq!(sum.into_inner().value, 499_500);
    }

    async fn both_directions_stream_at_once(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut numbers = channel(&client).await;
        let (outbox, inbox) = tokio::sync::mpsc::channel(1);
        let mut answers = numbers.echo(ReceiverStream::new(inbox)).await.unwrap().into_inner();
        for value in 0..200 {
            let asked = Number { value, payload: vec![value as u8; 2_000] };
            outbox.send(asked.clone()).await.unwrap();
            assert_eq!(answers.message().await.unwrap().unwrap(), asked);
        }
        drop(outbox);
        assert_eq!(answers.message().await.unwrap(), None);
    }

    async fn a_message_of_3_mib_is_carried(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut numbers = channel(&client).await;
        let payload: Vec<u8> = (0..3 << 20).map(|at| (at ^ (at >> 8)) as u8).collect();
        let answer = numbers.double(Number { value: 1, payload: payload.clone() }).await.unwrap();
        assert!(answer.into_inner().payload == payload);
    }

    async fn a_deadline_ends_the_call_on_both_sides(over) {
        let (service, client) = nodes(over).await;
        let state = serve(&service).await;
        let mut numbers = channel(&client).await;
        let mut asked = Request::new(number(NEVER));
        asked.set_timeout(Duration::from_millis(50));
        let error = numbers.double(asked).await.unwrap_err();
        assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled), "{error}");
        drop(state.running.acquire().await.unwrap());
    }

    async fn a_call_that_is_dropped_is_dropped_by_the_service(over) {
        let (service, client) = nodes(over).await;
        let state = serve(&service).await;
        let mut numbers = channel(&client).await;
        let mut others = numbers.clone();
        let call = tokio::spawn(async move { numbers.double(number(NEVER)).await });
        state.entered.notified().await;
        assert_eq!(state.running.available_permits(), 0);
        call.abort();
        drop(state.running.acquire().await.unwrap());
        assert_eq!(others.double(number(4)).await.unwrap().into_inner().value, 8);
    }

    async fn a_stream_of_answers_that_is_dropped_half_read_stops_no_other_call(over) {
        let (service, client) = nodes(over).await;
        serve(&service).await;
        let mut numbers = channel(&client).await;
        let asked = Number { value: 100_000, payload: vec![7; 1_000] };
        let mut answers = numbers.up_to(asked).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap().value, 0);
        assert_eq!(numbers.double(number(4)).await.unwrap().into_inner().value, 8);
        drop(answers);
        assert_eq!(numbers.double(number(5)).await.unwrap().into_inner().value, 10);
    }
}

#[tokio::test]
async fn a_channel_connects_again_when_its_service_was_restarted() {
    let builder = cluster();
    let client = builder.clone().name("client").start().await.unwrap();
    let first = builder.clone().start().await.unwrap();
    serve(&first).await;
    let mut numbers = channel(&client).await;
    assert_eq!(numbers.double(number(1)).await.unwrap().into_inner().value, 2);
    drop(first);
    let second = builder.start().await.unwrap();
    serve(&second).await;
    while numbers.double(number(2)).await.is_err() {
        tokio::task::yield_now().await;
    }
}
