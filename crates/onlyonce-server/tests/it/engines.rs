//! What a case runs on: every engine, and three nodes on one database.
//!
//! A case takes an [`Engine`] and makes its world of it. On three nodes each request of a world goes to the next node: what is
//! done at one must be seen at the others. A case about something that one node has for itself keeps to one.

use onlyonce_testkit::engines::postgres::Server;

use crate::program::Folder;

/// What a case runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// In the process.
    Memory,
    /// A file of its own.
    Sqlite,
    /// A schema of its own.
    Postgres,
    /// The same, shared by three nodes.
    ThreeNodes,
    /// A database of its own.
    #[cfg(feature = "mysql")]
    Mysql,
    /// A prefix of its own.
    #[cfg(feature = "redis")]
    Redis,
}

impl Engine {
    /// How many nodes there are.
    pub(crate) fn nodes(self) -> usize {
        match self {
            Self::Memory | Self::Sqlite | Self::Postgres => 1,
            Self::ThreeNodes => 3,
            #[cfg(feature = "mysql")]
            Self::Mysql => 1,
            #[cfg(feature = "redis")]
            Self::Redis => 1,
        }
    }

    /// The URL of a store that nobody else has.
    pub(crate) fn store(self, folder: &Folder) -> String {
        match self {
            Self::Memory => "memory:".to_owned(),
            Self::Sqlite => folder.url("onlyonce.db"),
            Self::Postgres | Self::ThreeNodes => Server::shared().fresh_schema(),
            #[cfg(feature = "mysql")]
            Self::Mysql => {
                let server = onlyonce_testkit::engines::mariadb::Server::shared();
                server.url(&server.fresh_database())
            }
            #[cfg(feature = "redis")]
            Self::Redis => onlyonce_testkit::engines::redis::Server::shared().fresh_prefix(),
        }
    }

    /// Whether it keeps expired records where that is wanted.
    pub(crate) fn has_archive(self) -> bool {
        match self {
            Self::Memory => false,
            Self::Sqlite | Self::Postgres | Self::ThreeNodes => true,
            #[cfg(feature = "mysql")]
            Self::Mysql => true,
            #[cfg(feature = "redis")]
            Self::Redis => false,
        }
    }
}

/// Makes tests of cases: of each, one on every engine.
macro_rules! on_every_engine {
    ($kind:ident $cases:tt) => {
        crate::engines::cases!($kind on_memory Memory $cases);
        crate::engines::on_every_stored_engine!($kind $cases);
    };
}

/// The same without memory, for what outlives a process or is shared by several.
macro_rules! on_every_stored_engine {
    ($kind:ident $cases:tt) => {
        crate::engines::on_every_sql_engine!($kind $cases);
        #[cfg(feature = "redis")]
        crate::engines::cases!($kind on_redis Redis $cases);
    };
}

/// Those that keep messages.
macro_rules! on_every_engine_with_messages {
    ($kind:ident $cases:tt) => {
        crate::engines::cases!($kind on_memory Memory $cases);
        crate::engines::on_every_sql_engine!($kind $cases);
    };
}

macro_rules! on_every_sql_engine {
    ($kind:ident $cases:tt) => {
        crate::engines::cases!($kind on_sqlite Sqlite $cases);
        crate::engines::cases!($kind on_postgres Postgres $cases);
        crate::engines::cases!($kind on_three_nodes ThreeNodes $cases);
        #[cfg(feature = "mysql")]
        crate::engines::cases!($kind on_mysql Mysql $cases);
    };
}

macro_rules! cases {
    (futures $module:ident $engine:ident { $($name:ident,)* }) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name(crate::engines::Engine::$engine).await;
                }
            )*
        }
    };
    (functions $module:ident $engine:ident { $($name:ident,)* }) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    super::$name(crate::engines::Engine::$engine);
                }
            )*
        }
    };
}

pub(crate) use {
    cases, on_every_engine, on_every_engine_with_messages, on_every_sql_engine, on_every_stored_engine,
};
