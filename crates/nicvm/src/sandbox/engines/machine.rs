//! A module on one engine. Each engine's module includes this file.

use super::{api, engine, instantiate, out_of_fuel};
use crate::sandbox::engines::{Machine, Stopped};
use crate::sandbox::state::{State, price};
use crate::sandbox::{Handler, Limits, LoadError, MAILBOX_BYTES, MAX_FUEL, MAX_STATE, VERSION};

type Caller<'a> = api::Caller<'a, StoreData>;

/// The data that the engine stores for a module.
struct StoreData {
    state: State,
    memory: Option<api::Memory>,
    limits: api::StoreLimits,
}

pub(in crate::sandbox) struct Prepared {
    module: api::Module,
    linker: api::Linker<StoreData>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

type Function<P> = Option<api::TypedFunc<P, ()>>;

pub(in crate::sandbox) struct Started {
    store: api::Store<StoreData>,
    memory: api::Memory,
    mailbox: usize,
    kept: (usize, usize),
    init: Function<()>,
    on_command: Function<(i32, i32, i32, i32, i32, i32)>,
    on_control: Function<(i32, i32)>,
    on_data: Function<(i32, i32, i32)>,
    on_timeout: Function<i32>,
    deactivate: Function<()>,
    export: Function<()>,
    import: Function<i32>,
}

pub(in crate::sandbox) fn prepare(bytes: &[u8]) -> Result<Prepared, LoadError> {
    let module = api::Module::new(engine(), bytes)
        .map_err(|error| LoadError::Invalid(one_line(&error.to_string())))?;
    let linker = linker().map_err(|error| LoadError::Start(error.to_string()))?;
    Ok(Prepared { module, linker })
}

pub(in crate::sandbox) fn start(
    prepared: &Prepared,
    state: State,
    limits: Limits,
) -> Result<Started, LoadError> {
    let limits = api::StoreLimitsBuilder::new()
        .memory_size(limits.memory)
        .table_elements(1_024)
        .instances(1)
        .tables(1)
        .memories(1)
        .build();
    let mut store = api::Store::new(engine(), StoreData { state, memory: None, limits });
    store.limiter(|data| &mut data.limits);
    store.set_fuel(MAX_FUEL).expect("fuel is counted");
    let instance = instantiate(&prepared.linker, &mut store, &prepared.module)
        .map_err(|error| LoadError::Start(one_line(&error.to_string())))?;
    let memory = instance.get_memory(&mut store, "memory").ok_or(LoadError::Export("memory"))?;
    store.data_mut().memory = Some(memory);
    let version = global(&mut store, &instance, "nicvm").ok_or(LoadError::Export("nicvm"))?;
    if version != VERSION {
        return Err(LoadError::Version(version));
    }
    let room = memory.data_size(&store);
    let mailbox = global(&mut store, &instance, "mailbox").ok_or(LoadError::Export("mailbox"))?;
    let mailbox = within(mailbox, MAILBOX_BYTES, room).ok_or(LoadError::Export("mailbox"))?;
    let kept = match global(&mut store, &instance, "state") {
        None => (0, 0),
        Some(at) => {
            let bytes = global(&mut store, &instance, "state_bytes");
            let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
            let bytes = bytes.filter(|bytes| *bytes <= MAX_STATE);
            let bytes = bytes.ok_or(LoadError::Export("state_bytes"))?;
            (within(at, bytes, room).ok_or(LoadError::Export("state"))?, bytes)
        }
    };
    Ok(Started {
        memory,
        mailbox,
        kept,
        init: function(&mut store, &instance, "init")?,
        on_command: function(&mut store, &instance, "on_command")?,
        on_control: function(&mut store, &instance, "on_control")?,
        on_data: function(&mut store, &instance, "on_data")?,
        on_timeout: function(&mut store, &instance, "on_timeout")?,
        deactivate: function(&mut store, &instance, "deactivate")?,
        export: function(&mut store, &instance, "export")?,
        import: function(&mut store, &instance, "import")?,
        store,
    })
}

impl Machine for Started {
    fn call(&mut self, handler: Handler, fuel: u64) -> Result<(), Stopped> {
        let store = &mut self.store;
        store.set_fuel(fuel).expect("fuel is counted");
        let ended = match handler {
            Handler::Init => self.init.as_ref().map(|f| f.call(store, ())),
            Handler::Command([a, b, c, d, e, f]) => {
                self.on_command.as_ref().map(|call| call.call(store, (a, b, c, d, e, f)))
            }
            Handler::Control(from, length) => {
                self.on_control.as_ref().map(|f| f.call(store, (from, length)))
            }
            Handler::Data(from, port, length) => {
                self.on_data.as_ref().map(|f| f.call(store, (from, port, length)))
            }
            Handler::Timeout(number) => self.on_timeout.as_ref().map(|f| f.call(store, number)),
            Handler::Deactivate => self.deactivate.as_ref().map(|f| f.call(store, ())),
            Handler::Export => self.export.as_ref().map(|f| f.call(store, ())),
            Handler::Import(length) => self.import.as_ref().map(|f| f.call(store, length)),
        };
        ended.map_or(Ok(()), |ended| ended.map_err(|_| Stopped))
    }

    fn state(&mut self) -> &mut State {
        &mut self.store.data_mut().state
    }

    fn mailbox(&mut self) -> &mut [u8] {
        // Memories grow, and never shrink.
        &mut self.memory.data_mut(&mut self.store)[self.mailbox..self.mailbox + MAILBOX_BYTES]
    }

    fn kept(&mut self) -> &mut [u8] {
        let (at, bytes) = self.kept;
        &mut self.memory.data_mut(&mut self.store)[at..at + bytes]
    }
}

fn global(store: &mut api::Store<StoreData>, instance: &api::Instance, name: &str) -> Option<i32> {
    let global = instance.get_global(&mut *store, name)?;
    match global.get(store) {
        api::Val::I32(value) => Some(value),
        _ => None,
    }
}

/// Returns a handler: `None` if the module does not export it, an error if its arguments have other types.
fn function<P: api::WasmParams>(
    store: &mut api::Store<StoreData>,
    instance: &api::Instance,
    name: &'static str,
) -> Result<Function<P>, LoadError> {
    if instance.get_func(&mut *store, name).is_none() {
        return Ok(None);
    }
    instance.get_typed_func(store, name).map(Some).map_err(|_| LoadError::Export(name))
}

fn within(at: i32, bytes: usize, room: usize) -> Option<usize> {
    let at = at as u32 as usize;
    (at.checked_add(bytes)? <= room).then_some(at)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Links the functions that modules may call.
fn linker() -> Result<api::Linker<StoreData>, api::Error> {
    let mut linker = api::Linker::new(engine());
    ask(&mut linker)?;
    send(&mut linker)?;
    time_out(&mut linker)?;
    answer(&mut linker)?;
    Ok(linker)
}

/// The module name from which the functions are imported.
const NIC: &str = "nic";

type Linked = Result<(), api::Error>;

fn ask(linker: &mut api::Linker<StoreData>) -> Linked {
    linker.func_wrap(NIC, "now", |mut caller: Caller<'_>| -> Result<i64, api::Error> {
        pay(&mut caller, price::ASK)?;
        Ok(caller.data().state.now())
    })?;
    linker.func_wrap(NIC, "node", |mut caller: Caller<'_>| -> Result<i32, api::Error> {
        pay(&mut caller, price::ASK)?;
        Ok(caller.data().state.node())
    })?;
    linker.func_wrap(NIC, "random", |mut caller: Caller<'_>| -> Result<i64, api::Error> {
        pay(&mut caller, price::ASK)?;
        Ok(caller.data_mut().state.draw())
    })?;
    Ok(())
}

fn send(linker: &mut api::Linker<StoreData>) -> Linked {
    linker.func_wrap(
        NIC,
        "send_control",
        |mut caller: Caller<'_>, to: i32, at: i32, length: i32| -> Result<i32, api::Error> {
            with_bytes(&mut caller, price::SEND, (at, length), |state, bytes| {
                state.send_control(to, bytes)
            })
        },
    )?;
    linker.func_wrap(
        NIC,
        "send_data",
        |mut caller: Caller<'_>,
         to: i32,
         port: i32,
         at: i32,
         length: i32|
         -> Result<i32, api::Error> {
            with_bytes(&mut caller, price::SEND, (at, length), |state, bytes| {
                state.send_data(to, port, bytes)
            })
        },
    )?;
    Ok(())
}

fn time_out(linker: &mut api::Linker<StoreData>) -> Linked {
    linker.func_wrap(
        NIC,
        "set_timeout",
        |mut caller: Caller<'_>, number: i32, coarse: i32, nanos: i64| -> Result<i32, api::Error> {
            pay(&mut caller, price::TIMEOUT)?;
            Ok(caller.data_mut().state.set_timeout(number, coarse, nanos))
        },
    )?;
    linker.func_wrap(
        NIC,
        "cancel_timeout",
        |mut caller: Caller<'_>, number: i32| -> Result<i32, api::Error> {
            pay(&mut caller, price::TIMEOUT)?;
            Ok(caller.data_mut().state.cancel_timeout(number))
        },
    )?;
    Ok(())
}

fn answer(linker: &mut api::Linker<StoreData>) -> Linked {
    linker.func_wrap(
        NIC,
        "complete",
        |mut caller: Caller<'_>,
         ticket: i32,
         status: i32,
         length: i64,
         first: i64,
         second: i64|
         -> Result<i32, api::Error> {
            pay(&mut caller, price::COMPLETE)?;
            Ok(caller.data_mut().state.complete(ticket, status, length, [first, second]))
        },
    )?;
    linker.func_wrap(
        NIC,
        "write",
        |mut caller: Caller<'_>,
         ticket: i32,
         offset: i32,
         at: i32,
         length: i32|
         -> Result<i32, api::Error> {
            with_bytes(&mut caller, price::COMPLETE, (at, length), |state, bytes| {
                state.write(ticket, offset, bytes)
            })
        },
    )?;
    Ok(())
}

/// Charges a call's price to the handler's fuel.
fn pay(caller: &mut Caller<'_>, fuel: u64) -> Result<(), api::Error> {
    let left = caller.get_fuel()?.checked_sub(fuel);
    let left = left.ok_or_else(out_of_fuel)?;
    caller.set_fuel(left)?;
    caller.data_mut().state.spend(fuel);
    Ok(())
}

/// Passes a range of the module's memory to `ask`; returns -1 if the range passes the end.
fn with_bytes(
    caller: &mut Caller<'_>,
    fuel: u64,
    (at, length): (i32, i32),
    ask: impl FnOnce(&mut State, &[u8]) -> i32,
) -> Result<i32, api::Error> {
    pay(caller, fuel.saturating_add(u64::from(length as u32) * price::BYTE))?;
    let Some(memory) = caller.data().memory else { return Ok(-1) };
    let (bytes, data) = memory.data_and_store_mut(caller);
    let length = length as u32 as usize;
    let Some(at) = within(at, length, bytes.len()) else { return Ok(-1) };
    Ok(ask(&mut data.state, &bytes[at..at + length]))
}
