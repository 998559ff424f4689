//! What only the crates together show.

#[cfg(feature = "sqlite")]
mod any;
#[cfg(all(feature = "macros", feature = "sqlite"))]
mod errors;
mod tables;

/// What people write by mistake does not compile, and the compiler's words say what to write instead.
/// `TRYBUILD=overwrite` writes the texts anew.
#[cfg(all(feature = "macros", feature = "sqlite"))]
#[test]
fn mistakes_are_told_in_words_that_help() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/wrong_transaction.rs");
    if cfg!(feature = "postgres") {
        cases.compile_fail("tests/ui/wrong_transaction_of_another.rs");
        cases.compile_fail("tests/ui/wrong_transaction_postgres.rs");
    }
}
