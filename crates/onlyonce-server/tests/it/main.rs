//! The program as its users see it, and the pages that must agree with the code.

mod admin;
mod admin_access;
mod admin_changes;
mod admin_events;
mod admin_keys;
mod admin_openapi;
mod admin_world;
mod demo;
mod documents;
mod examples;
mod migrate;
mod operate;
mod probes;
mod program;
mod provider;
mod serve;
mod settings;
mod store;
mod webhooks;
