//! What the layer promises when things go wrong, on a clock that the tests move.

mod attempts;
mod extract;
mod outage;
mod status;
mod stream;
mod waiting;
mod world;
