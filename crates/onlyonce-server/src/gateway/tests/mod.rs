//! The gateway over real sockets, before services that do what they are told, byte by byte.

mod http2;
mod losses;
mod passing;
mod requests;
mod secured;
mod service;
mod stops;
mod wire;
mod workers;
mod world;
