//! Tests nodes that share a receiver's port by tokens, over UDP on loopback.

use midplane::{ErrorKind, Node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::node::{Over, nodes};

/// Number of senders.
const SENDERS: u8 = 6;
const BODIES: usize = 3;
const BODY: usize = 300_000;

/// Sends bodies, and returns the number of answers.
async fn send(node: Node, of: u8) -> usize {
    let mut answers = 0;
    for _ in 0..BODIES {
        let mut stream = node.connect("sink").await.unwrap();
        stream.write_all(&vec![of; BODY]).await.unwrap();
        stream.shutdown().await.unwrap();
        answers += usize::from(stream.read_u8().await.unwrap() == of);
    }
    answers
}

#[tokio::test]
async fn many_nodes_send_to_one_that_grants_tokens_and_lose_nothing() {
    let (receiver, sender) = nodes("tokens", Over::Udp);
    // One of the senders grants tokens as well.
    let receiver = receiver.receive_tokens().start().await.unwrap();
    let mut listener = receiver.listen("sink").await.unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut body = Vec::new();
                stream.read_to_end(&mut body).await.unwrap();
                assert_eq!(body.len(), BODY);
                assert!(body.iter().all(|byte| *byte == body[0]));
                stream.write_u8(body[0]).await.unwrap();
            });
        }
    });
    let mut sending = Vec::new();
    for of in 0..SENDERS {
        let sender = if of == 0 { sender.clone().port_buffer(16 << 10) } else { sender.clone() };
        sending.push(tokio::spawn(send(sender.start().await.unwrap(), of)));
    }
    for sending in sending {
        assert_eq!(sending.await.unwrap(), BODIES);
    }
    let explanation = receiver.explain();
    let tokens = explanation.tokens.expect("it grants tokens");
    assert_eq!((tokens.port_buffer, tokens.waiting), (64 << 10, 0));
    assert!(tokens.granted >= 100, "{tokens:?}");
    assert!(explanation.to_string().contains("65536 bytes by tokens"), "{explanation}");
    serving.abort();
}

#[tokio::test]
async fn a_buffer_that_no_port_has_and_tokens_without_udp_are_errors_that_name_the_cure() {
    let (builder, _) = nodes("no-tokens", Over::Udp);
    for bytes in [0, 100, (1 << 30) + 1, u64::MAX] {
        let error = builder.clone().port_buffer(bytes).start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("8 KiB to 1 GiB") && text.contains("receive_tokens"), "{text}");
    }
    let error = builder.clone().transports("shm,tcp").receive_tokens().start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("add `udp`"), "{error}");
    assert_eq!(builder.start().await.unwrap().explain().tokens, None);
}
