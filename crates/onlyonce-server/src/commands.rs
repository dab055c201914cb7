//! What operators ask of the program, a verb a file.

pub(crate) mod store;
