//! The program with its three services, on the NATS of the tests.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod arguments;
mod storm;

use std::process::{Command, Output};

/// Runs it to its end: how that was, and all its words.
fn saga(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_saga")).args(arguments).output().unwrap();
    let words = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, words)
}
