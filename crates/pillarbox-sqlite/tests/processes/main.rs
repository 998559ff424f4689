//! Several processes on one file, and what is left when one of them is killed, paused or locked out.
//!
//! The processes are real: this test binary starts itself again (see [`child`]). What was committed is read
//! from a table of the application's own, what was delivered from a ledger that the handlers append to; the
//! outbox's tables are never asked about either.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod child;
mod kill;
mod ledger;
mod lock;
mod pause;
mod poison;
mod room;
mod share;
mod stage;
