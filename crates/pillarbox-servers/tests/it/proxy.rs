//! The faults of the proxy, on plain sockets and on real servers.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

use pillarbox_servers::{Proxy, Shared};

use crate::client::{complaint, rows, until};

const LONG: Duration = Duration::from_secs(20);

/// A server that says the same thing after everything it hears, and tells what it heard.
fn server(says: &'static [u8]) -> (Proxy, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).unwrap();
    let (heard, hears) = mpsc::channel();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let heard = heard.clone();
            thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let _ = heard.send(buffer[..count].to_vec());
                    let _ = stream.write_all(says);
                }
            });
        }
    });
    (proxy, hears)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// What comes back; nothing when the connection was cut.
fn ask(mut stream: &TcpStream, words: &[u8]) -> Vec<u8> {
    let mut buffer = [0; 1024];
    let _ = stream.write_all(words);
    let count = stream.read(&mut buffer).unwrap_or(0);
    buffer[..count].to_vec()
}

#[test]
fn cut_ends_connections_and_new_ones_are_served() {
    let (proxy, _hears) = server(b"hello");
    let streams = [connect(&proxy), connect(&proxy)];
    for stream in &streams {
        assert_eq!(ask(stream, b"?"), b"hello");
    }
    assert_eq!(proxy.connections(), 2);
    proxy.cut();
    for stream in &streams {
        assert_eq!(ask(stream, b"?"), b"");
    }
    assert_eq!(ask(&connect(&proxy), b"?"), b"hello");
}

#[test]
fn refuse_leaves_connections_alone_and_accept_ends_it() {
    let (proxy, _hears) = server(b"hello");
    let old = connect(&proxy);
    assert_eq!(ask(&old, b"?"), b"hello");
    proxy.refuse();
    assert_eq!(TcpStream::connect(proxy.addr()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ask(&old, b"?"), b"hello");
    proxy.accept().unwrap();
    assert_eq!(ask(&connect(&proxy), b"?"), b"hello");
}

#[test]
fn stall_holds_bytes_back_and_resume_lets_them_go() {
    let (proxy, hears) = server(b"hello");
    let mut stream = connect(&proxy);
    assert_eq!(ask(&stream, b"1"), b"hello");
    assert_eq!(hears.recv_timeout(LONG).unwrap(), b"1");
    proxy.stall();
    stream.write_all(b"2").unwrap();
    // That something does not come can't be waited for, only shown for a while.
    assert!(hears.recv_timeout(Duration::from_millis(100)).is_err());
    proxy.resume();
    assert_eq!(hears.recv_timeout(LONG).unwrap(), b"2");
    assert_eq!(ask(&stream, b""), b"hello");
}

#[test]
fn stalled_connection_can_be_cut() {
    let (proxy, _hears) = server(b"hello");
    let stream = connect(&proxy);
    assert_eq!(ask(&stream, b"1"), b"hello");
    proxy.stall();
    proxy.cut();
    assert_eq!(ask(&stream, b"2"), b"");
    until("the connection is gone", || proxy.connections() == 0);
}

#[test]
fn lost_answer_to_a_commit_reached_the_server_and_strikes_once() {
    let cases: [(&[u8], &[u8], &[u8]); 2] = [
        (b"Q\0\0\0\x0aBEGIN\0", b"Q\0\0\0\x0bCOMMIT\0", b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I"),
        (b"\x06\0\0\0\x03BEGIN", b"\x07\0\0\0\x03commit", b"\x07\0\0\x01\0\0\0\x02\0\0\0"),
    ];
    for (begin, commit, answer) in cases {
        let (proxy, hears) = server(answer);
        let other = connect(&proxy);
        if begin[0] != b'Q' {
            proxy.lose_next_commit_answer();
            assert_eq!(ask(&other, begin), answer, "only a commit is struck");
            hears.recv_timeout(LONG).unwrap();
        }
        proxy.lose_next_commit_answer();
        let stream = connect(&proxy);
        assert_eq!(ask(&stream, commit), b"");
        assert_eq!(hears.recv_timeout(LONG).unwrap(), commit);
        assert!(proxy.wait_for_lost_commits(1, LONG));
        assert_eq!(ask(&other, commit), answer);
    }
}

#[test]
fn lost_commit_never_reaches_the_server() {
    let (proxy, hears) = server(b"hello");
    let stream = connect(&proxy);
    proxy.lose_next_commit();
    assert_eq!(ask(&stream, b"Q\0\0\0\x0bCOMMIT\0"), b"");
    assert_eq!(ask(&connect(&proxy), b"next"), b"hello");
    assert_eq!(hears.recv_timeout(LONG).unwrap(), b"next");
    assert_eq!(proxy.lost_commits(), 1);
}

#[test]
fn commits_are_lost_on_real_servers() {
    for shared in [Shared::Postgres, Shared::PostgresNewest, Shared::PgBouncer, Shared::MariaDb] {
        let database = shared.database();
        let proxy = Proxy::to_url(&database.url()).unwrap();
        let url = proxy.url(&database.url());
        rows(&database.url(), &["create table t (n int)"]);
        proxy.lose_next_commit_answer();
        complaint(&url, &["begin", "insert into t values (1)", "commit"]);
        proxy.lose_next_commit();
        complaint(&url, &["begin", "insert into t values (2)", "commit"]);
        rows(&url, &["begin", "insert into t values (4)", "commit"]);
        assert_eq!(proxy.lost_commits(), 2);
        assert_eq!(rows(&database.url(), &["select sum(n) from t"]), "5", "{shared:?}");
    }
}
