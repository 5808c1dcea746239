//! Extensions as WebAssembly modules. A binary of its own: all other tests are built without the engines.

mod engines;
mod generator;
mod harness;
mod hostile_modules;
mod sandbox;
