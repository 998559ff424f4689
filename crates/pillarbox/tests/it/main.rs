//! What only the crates together show.

#[cfg(feature = "sqlite")]
mod any;
mod tables;
