//! MySQL.

use std::ops::{Deref, DerefMut};

use super::Server;
use crate::Error;

/// A private MySQL server.
#[derive(Debug)]
pub struct MySql(Server);

impl MySql {
    /// Starts a server with the settings for tests: 300 connections, and nothing waits for the disk.
    pub fn start() -> Result<Self, Error> {
        Err(Error::new("not yet"))
    }
}

impl Deref for MySql {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl DerefMut for MySql {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.0
    }
}
