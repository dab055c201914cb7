//! Settings as users write them.
