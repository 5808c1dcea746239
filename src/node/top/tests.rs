//! Tests reports from nodes that answer as no real node does.

use tower::service_fn;

use super::*;

/// Reads a report from a node that answers with `answer`, and returns the error.
async fn answered_by<R: serde::Serialize + Clone + Send + 'static>(test: &str, answer: R) -> Error {
    let builder = Node::builder().cluster(format!("top-{test}-{}", std::process::id()));
    let hostile = builder.clone().name("hostile").start().await.unwrap();
    let answer = service_fn(move |(): ()| ready(Ok::<_, String>(answer.clone())));
    let limits = Limits::default().max_message(usize::MAX);
    let _serving = hostile.serve_as(SERVICE.into(), SERVICE, answer, limits).unwrap();
    let observer = builder.start().await.unwrap();
    let mut readings = observer.top().await.unwrap();
    assert_eq!((readings.len(), &*readings[0].peer.name), (1, "hostile"));
    readings.remove(0).report.unwrap_err()
}

#[tokio::test]
async fn an_answer_that_is_no_report_is_an_error() {
    let long = Report { address: Some("x".repeat(1_000)), ..Report::default() };
    let many =
        Report { losses: vec![report::Loss::default(); MAX_ENTRIES + 1], ..Report::default() };
    let encoded = |report| encode_value(report).unwrap();
    for (test, bytes) in [
        ("empty", Vec::new()),
        ("bytes", vec![0xff; 10_000]),
        ("long", encoded(&long)),
        ("many", encoded(&many)),
    ] {
        let error = answered_by(test, (VERSION, bytes)).await;
        assert_eq!(error.kind(), ErrorKind::Version, "{test}: {error}");
        assert!(error.to_string().contains("hostile: its answer is no report"), "{error}");
    }
    let error = answered_by("other", "text").await;
    assert_eq!(error.kind(), ErrorKind::Version, "{error}");
}

#[tokio::test]
async fn a_report_of_another_version_or_beyond_the_limit_is_an_error_that_says_so() {
    let error = answered_by("version", (VERSION + 1, Vec::<u8>::new())).await;
    assert_eq!(error.kind(), ErrorKind::Version);
    assert!(error.to_string().contains("version 2, this program reads 1"), "{error}");
    let error = answered_by("large", (VERSION, vec![0_u8; 2 << 20])).await;
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
}

#[test]
fn the_largest_report_fits_into_an_answer() {
    let text = "x".repeat(256);
    let peer = Peer { why: text.clone(), name: "x".repeat(100), ..Peer::default() };
    let service = ServiceStreams { name: text.clone(), ..ServiceStreams::default() };
    let calls = Calls { service: text, ..Calls::default() };
    let report = Report {
        peers: vec![peer; MAX_ENTRIES],
        services: vec![service; MAX_ENTRIES],
        calls: vec![calls; MAX_ENTRIES],
        ..Report::default()
    };
    assert!(report.is_bounded());
    // Places that were not reached have two texts each.
    let places = MAX_ENTRIES * 2 * (256 + 8);
    assert!(encode_value(&report).unwrap().len() + places < crate::call::DEFAULT_MAX_MESSAGE);
}
