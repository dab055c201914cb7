//! The gateway over real sockets, in front of scripted services.

mod attacks;
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
