//! Extensions as WebAssembly modules. A binary of its own: all other tests are built without the engines.

mod desk;
mod engines;
mod generator;
mod hostile_modules;
mod sandbox;
