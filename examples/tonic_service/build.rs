//! Generates the server and the client of the service `orders.Orders`, without `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let place = Method::builder()
        .name("place")
        .route_name("Place")
        .input_type("crate::Order")
        .output_type("crate::Receipt")
        .codec_path("tonic_prost::ProstCodec");
    let orders = Service::builder().name("Orders").package("orders").method(place.build());
    Builder::new().compile(&[orders.build()]);
}
