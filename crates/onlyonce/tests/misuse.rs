//! Misuse that types can catch does not compile, and what the compiler says is of use.
#![cfg(all(feature = "deadpool-postgres", feature = "sqlite", feature = "sqlx", feature = "sqlx-mysql"))]

/// W01, W02: `TRYBUILD=overwrite` writes what the compiler says beside each file.
#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
