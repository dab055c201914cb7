//! The layer.
