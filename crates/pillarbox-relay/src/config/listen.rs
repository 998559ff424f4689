//! Where to listen, as it is written.

use std::net::SocketAddr;

use serde::de::{Deserialize, Deserializer, Error as _, Unexpected};

/// An address, with a port.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let expected = "an address and a port, such as \"127.0.0.1:9464\" or \"[::]:9464\" (not the name of a host)";
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| D::Error::invalid_value(Unexpected::Other("a text"), &expected))
}

/// The same, of a setting without a default of its own.
pub(super) fn set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    address(deserializer).map(Some)
}
