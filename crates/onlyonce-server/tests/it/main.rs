//! The program as its users see it, and the pages that must agree with the code.

mod admin;
mod demo;
mod documents;
mod examples;
mod migrate;
mod probes;
mod program;
mod provider;
mod serve;
mod settings;
mod store;
mod webhooks;
