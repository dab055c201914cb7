//! The operators' commands, from outside: on a store at rest, on one that a gateway has, and against an admin port.

mod arguments;
mod audit;
mod doctor;
mod gateway;
mod ledger;
mod pages;
mod postgres;
mod store;
mod wire;
mod work;
mod world;
