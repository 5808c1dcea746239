//! Generates the service's code; with `protoc` at hand, `tonic_prost_build::compile_protos` does it from a `.proto` file.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let hello = Method::builder()
        .name("hello")
        .route_name("Hello")
        .input_type("crate::Name")
        .output_type("crate::Greeting")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let service = Service::builder().name("Greeter").package("greeter").method(hello).build();
    Builder::new().compile(&[service]);
}
