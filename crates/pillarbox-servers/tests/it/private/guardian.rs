//! A server ends with the process that started it.

use std::{
    env,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use pillarbox_servers::{MariaDb, PgBouncer, Postgres, pgbouncer::PoolMode, postgres::Version};

use crate::client::until;

const CHILD: &str = "PILLARBOX_TEST_CHILD";

#[test]
fn servers_of_a_killed_process_end_and_leave_nothing() {
    if env::var_os(CHILD).is_some() {
        starts_servers_and_never_stops_them();
    }
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "private::guardian::servers_of_a_killed_process_end_and_leave_nothing", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.map_while(|line| if line == "started" { None } else { Some(line) });
    let servers: Vec<(u16, String)> = told
        .filter_map(|line| {
            let (port, folder) = line.strip_prefix("server ")?.split_once(' ')?;
            Some((port.parse().unwrap(), folder.to_owned()))
        })
        .collect();
    assert_eq!(servers.len(), 3);
    for (port, _) in &servers {
        TcpStream::connect(("127.0.0.1", *port)).unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for (port, folder) in &servers {
        until("the port is closed", || TcpStream::connect(("127.0.0.1", *port)).is_err());
        until("the folder is gone", || !Path::new(folder).exists());
    }
}

/// Until it is killed.
fn starts_servers_and_never_stops_them() -> ! {
    let postgres = Postgres::start(Version::Debian).unwrap();
    let mariadb = MariaDb::start().unwrap();
    let pgbouncer = PgBouncer::start(&postgres, PoolMode::Session).unwrap();
    // The harness has begun a line.
    println!();
    println!("server {} {}", postgres.port(), postgres.folder().display());
    println!("server {} {}", mariadb.port(), mariadb.folder().display());
    println!("server {} {}", pgbouncer.port(), pgbouncer.folder().display());
    println!("started");
    loop {
        thread::park();
    }
}
