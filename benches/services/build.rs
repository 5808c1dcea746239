//! Generates the server and the client of the gRPC service `bench.Echo`, without `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let echo = Method::builder()
        .name("echo")
        .route_name("Echo")
        .input_type("crate::grpc::Payload")
        .output_type("crate::grpc::Payload")
        .codec_path("tonic_prost::ProstCodec");
    let service = Service::builder().name("Echo").package("bench").method(echo.build());
    Builder::new().compile(&[service.build()]);
}
