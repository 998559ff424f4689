//! What the macros generate, and what they tell those who make a mistake.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod events;
mod methods;

/// H5, H6: every mistake is an error at its place, and says what to write. `TRYBUILD=overwrite` writes the texts anew.
#[test]
fn mistakes_are_told_where_they_are() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/event/*.rs");
    cases.compile_fail("tests/ui/handlers/*.rs");
    cases.compile_fail("tests/ui/store/*.rs");
}
