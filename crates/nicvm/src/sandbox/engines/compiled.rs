//! The compiling engine: Wasmtime.

use std::sync::OnceLock;

use wasmtime as api;

fn engine() -> &'static api::Engine {
    static ENGINE: OnceLock<api::Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut config = api::Config::new();
        config
            .consume_fuel(true)
            .wasm_custom_page_sizes(true)
            .wasm_features(api::WasmFeatures::FLOATS, false)
            .wasm_features(api::WasmFeatures::SIMD, false)
            .wasm_features(api::WasmFeatures::RELAXED_SIMD, false)
            .wasm_memory64(false)
            .wasm_multi_memory(false)
            .wasm_backtrace_max_frames(None)
            // Memories are small and many, so no address space is reserved behind each.
            .memory_reservation(0)
            .memory_reservation_for_growth(0)
            .memory_guard_size(0)
            .guard_before_linear_memory(false)
            .max_wasm_stack(256 << 10);
        api::Engine::new(&config).expect("the settings are consistent")
    })
}

fn instantiate<T: 'static>(
    linker: &api::Linker<T>,
    store: &mut api::Store<T>,
    module: &api::Module,
) -> Result<api::Instance, api::Error> {
    linker.instantiate(store, module)
}

fn out_of_fuel() -> api::Error {
    api::Error::msg("out of fuel")
}

#[path = "machine.rs"]
pub(super) mod machine;
