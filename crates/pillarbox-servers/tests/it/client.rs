//! Client programs as processes of their own, for what must go wrong.

use std::{
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// psql or mariadb, by the URL, with statements that it runs one by one.
pub(crate) fn client(url: &str, statements: &[&str]) -> Command {
    if url.starts_with("postgres") {
        let mut command = Command::new("psql");
        command.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", url]);
        for statement in statements {
            command.args(["-c", statement]);
        }
        command.stdin(Stdio::null());
        return command;
    }
    let (login, place) = url.strip_prefix("mysql://").unwrap().split_once('@').unwrap();
    let (user, password) = login.split_once(':').unwrap();
    let (address, database) = place.split_once('/').unwrap();
    let (host, port) = address.split_once(':').unwrap();
    let mut command = Command::new("mariadb");
    command.env("MYSQL_PWD", password).args(["--no-defaults", "--batch", "--skip-column-names"]);
    command.args(["--skip-reconnect", "--protocol=tcp", "-h", host, "-P", port, "-u", user]);
    command.args(["-e", &statements.join(";"), database]);
    command
}

/// Runs the statements to their end.
pub(crate) fn run(url: &str, statements: &[&str]) -> Output {
    client(url, statements).output().unwrap()
}

/// What the statements print, which must succeed.
pub(crate) fn rows(url: &str, statements: &[&str]) -> String {
    let output = run(url, statements);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// What the statements complain of, which must fail.
pub(crate) fn complaint(url: &str, statements: &[&str]) -> String {
    let output = run(url, statements);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

/// Waits for what another process does, of which there is no other sign.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}
