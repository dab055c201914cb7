//! What a store's schema is, and what it lacks: told before anything is changed.

/// A schema, as it is and as this release wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// The number of the last migration that was applied; 0 where there was none.
    pub version: u32,
    /// The number of this release's last migration.
    pub latest: u32,
    /// What is missing, in order.
    pub pending: Vec<Migration>,
}

/// A step that a schema lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// From 1.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// What is run.
    pub sql: String,
    /// A release that knows the schema up to this number can work on with it; an older one cannot.
    pub needs: u32,
}
