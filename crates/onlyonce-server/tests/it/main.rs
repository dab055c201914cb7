//! The program as its users see it, and the pages that must agree with the code.

mod accepted;
mod admin;
mod admin_access;
mod admin_changes;
mod admin_events;
mod admin_keys;
mod admin_openapi;
mod admin_outbox;
mod admin_program;
mod admin_refusals;
mod admin_world;
mod alerts;
#[cfg(feature = "redis")]
mod cache;
mod conform;
mod dashboard;
mod demo;
mod descriptors;
mod documents;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod encryption;
mod engines;
mod examples;
mod gateways;
mod limits;
mod migrate;
mod operate;
mod own_keys;
mod probes;
mod program;
mod provider;
mod relay;
mod serve;
mod settings;
mod settling;
mod store;
mod telemetry;
mod webhooks;
