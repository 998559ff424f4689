//! A database for one test.

use std::mem;

use crate::{
    Error, folder,
    login::{Login, MYSQL_ADMIN, POSTGRES_ADMIN, USER},
    mysql, postgres,
};

/// A new, empty database with a random name, `pb_...`. It is dropped with this value, connections or not.
#[derive(Debug)]
pub struct Database {
    family: Family,
    port: u16,
    // Where tests connect to, if that is not the server itself.
    front: Option<u16>,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Postgres,
    MySql,
}

impl Family {
    fn scheme(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
        }
    }
}

impl Database {
    /// Creates a database on the server with this URL. Name, password and database of the URL don't matter: all
    /// servers of this crate have the same logins.
    ///
    /// # Panics
    /// When the server does not create it.
    pub fn on(url: &str) -> Self {
        let family = if url.starts_with("mysql") { Family::MySql } else { Family::Postgres };
        let database = Self { family, port: port(url), front: None, name: format!("pb_{}", folder::word()) };
        let created = match family {
            Family::Postgres => {
                postgres::psql(USER, database.port, "postgres", &format!("create database {}", database.name))
            }
            Family::MySql => database.run_sql(USER, "", &format!("create database {}", database.name)),
        };
        match created {
            Ok(_) => database,
            Err(error) => {
                // There is nothing to drop.
                mem::forget(database);
                panic!("no database for the test: {error}");
            }
        }
    }

    /// The URL, for [`USER`].
    pub fn url(&self) -> String {
        self.url_for(USER)
    }

    /// The URL, for a login of choice, such as [`BLIND`](crate::login::BLIND).
    pub fn url_for(&self, login: Login) -> String {
        login.url(self.family.scheme(), self.front.unwrap_or(self.port), &self.name)
    }

    /// The URL, for who may do everything on the server.
    pub fn admin_url(&self) -> String {
        self.url_for(self.admin())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port of the server, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.front.unwrap_or(self.port)
    }

    /// Runs statements as [`USER`] with the server's own client, and returns the bare rows.
    pub fn run(&self, statements: &str) -> Result<String, Error> {
        self.run_sql(USER, &self.name, statements)
    }

    /// Runs statements as who may do everything.
    pub fn run_as_admin(&self, statements: &str) -> Result<String, Error> {
        self.run_sql(self.admin(), &self.name, statements)
    }

    /// The same database, which tests reach by another port.
    pub(crate) fn seen_through(mut self, port: u16) -> Self {
        self.front = Some(port);
        self
    }

    fn admin(&self) -> Login {
        match self.family {
            Family::Postgres => POSTGRES_ADMIN,
            Family::MySql => MYSQL_ADMIN,
        }
    }

    fn run_sql(&self, login: Login, database: &str, statements: &str) -> Result<String, Error> {
        match self.family {
            Family::Postgres => postgres::psql(login, self.port, database, statements),
            Family::MySql => mysql::client(login, self.port, database, statements),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let dropped = match self.family {
            Family::Postgres => {
                let statement = format!("drop database if exists {} with (force)", self.name);
                self.run_sql(POSTGRES_ADMIN, "postgres", &statement)
            }
            Family::MySql => mysql::drop_database(self.port, &self.name),
        };
        // A server that is gone took the database with it. Whether that is so, a reader of the output can tell.
        if let Err(error) = dropped {
            eprintln!("the database {} was not dropped: {error}", self.name);
        }
    }
}

/// The port of a URL.
///
/// # Panics
/// When there is none: the URL is not from this crate.
pub(crate) fn port(url: &str) -> u16 {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.unwrap_or_else(|| panic!("`{url}` has no port"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::BLIND;

    #[test]
    fn the_port_is_found_behind_a_password() {
        assert_eq!(port(&BLIND.url("mysql", 4711, "")), 4711);
    }
}
