//! The interpreting engine: Wasmi.

use std::sync::OnceLock;

use wasmi as api;

fn engine() -> &'static api::Engine {
    static ENGINE: OnceLock<api::Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut config = api::Config::default();
        config
            .consume_fuel(true)
            .wasm_custom_page_sizes(true)
            .floats(false)
            .wasm_multi_memory(false)
            .compilation_mode(api::CompilationMode::Eager);
        api::Engine::new(&config)
    })
}

fn instantiate<T: 'static>(
    linker: &api::Linker<T>,
    store: &mut api::Store<T>,
    module: &api::Module,
) -> Result<api::Instance, api::Error> {
    linker.instantiate_and_start(store, module)
}

fn out_of_fuel() -> api::Error {
    api::Error::new("out of fuel")
}

#[path = "machine.rs"]
pub(super) mod machine;
