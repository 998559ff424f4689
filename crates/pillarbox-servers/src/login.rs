//! Who may log in to a server for tests. The same everywhere, so that a URL tells all that there is to know.

/// A name and its password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub name: &'static str,
    /// The password.
    pub password: &'static str,
}

/// What an application logs in as. On PostgreSQL it may create databases; on MariaDB and MySQL it has all rights
/// on databases named `pb_...`, and PROCESS, for `information_schema.innodb_trx`.
pub const USER: Login = Login { name: "pillarbox", password: "first-class" };

/// The same without PROCESS, on MariaDB and MySQL.
pub const BLIND: Login = Login { name: "pillarbox_blind", password: "second-class" };

/// PostgreSQL's superuser.
pub const POSTGRES_ADMIN: Login = Login { name: "postgres", password: "postmaster" };

/// Who may do everything on MariaDB and MySQL. Not `root`, whom a new server has already, without a password.
pub const MYSQL_ADMIN: Login = Login { name: "postmaster", password: "postmaster" };

impl Login {
    /// The URL of a database on this machine.
    pub fn url(self, scheme: &str, port: u16, database: &str) -> String {
        format!("{scheme}://{}:{}@127.0.0.1:{port}/{database}", self.name, self.password)
    }
}
