//! Several processes on one file, and what is left when one of them is killed, paused or locked out.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod lock;
mod room;
mod shop;

pillarbox_testkit::processes!(shop::File);
pillarbox_testkit::processes!(@stormy shop::File);
