//! Servers of a test's own. By the name of this module the test runner knows tests that start servers, and runs
//! few of them at once.

mod binary_log;
mod crash;
mod goodbye;
mod read_only;
mod tls;

use std::ops::{Deref, DerefMut};

use pillarbox_testkit::servers::{
    MariaDb, MySql, Shared,
    mysql::{Options, Server},
};

/// A server of the same kind as a shared one: tests that are made by `on_each_server` start it.
enum Own {
    MariaDb(MariaDb),
    MySql(MySql),
}

impl Own {
    fn start(like: Shared, options: Options) -> Self {
        match like {
            Shared::MySql => Self::MySql(MySql::start_with(options).unwrap()),
            _ => Self::MariaDb(MariaDb::start_with(options).unwrap()),
        }
    }
}

impl Deref for Own {
    type Target = Server;

    fn deref(&self) -> &Server {
        match self {
            Self::MariaDb(server) => server,
            Self::MySql(server) => server,
        }
    }
}

impl DerefMut for Own {
    fn deref_mut(&mut self) -> &mut Server {
        match self {
            Self::MariaDb(server) => server,
            Self::MySql(server) => server,
        }
    }
}
