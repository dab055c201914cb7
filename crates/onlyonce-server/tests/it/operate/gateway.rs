//! Against the admin port of a running gateway.
