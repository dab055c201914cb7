//! What the rules promise, told as tables and stories.

mod machine;
mod script;
