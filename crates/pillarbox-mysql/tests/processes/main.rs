//! Several processes on one database, and what is left when one of them, its connection or the server goes away.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, in its steps as well")]

mod conflict;
mod kinds;
mod purge;
mod shop;

pillarbox_testkit::processes!(shop::Shared);
pillarbox_testkit::processes!(@served shop::Shared);
pillarbox_testkit::processes!(@telling mysql: shop::MySql);
pillarbox_testkit::processes!(@private shop::Private);
pillarbox_testkit::processes!(@stormy shop::Private);
