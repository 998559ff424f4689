//! What is said about a database that can't be used fits what is wrong with it.

use pillarbox_servers::Shared;

use super::{pillarbox, stderr};

fn refused(arguments: &[&str]) -> String {
    let output = pillarbox(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
    stderr(&output)
}

#[test]
fn what_is_refused_before_anything_is_opened_is_not_blamed_on_the_login() {
    let here = "postgres://me:secret@127.0.0.1:1/shop";
    for (arguments, word) in [
        (&["--db", here, "--prefix", "x; y"][..], "table prefix"),
        (&["--db", here, "--schema", "x; y"], "schema \"x; y\" is refused"),
        (&["--db", &format!("{here}?pillarbox_pooler=statement")], "neither `transaction` nor `session`"),
        (&["--db", "mysql://me:secret@127.0.0.1:1"], "names no database"),
        (&["--db", "mysql://me:secret@127.0.0.1:1/shop", "--prefix", "x; y"], "table prefix"),
        (&["--db", "sqlite:/no/such/folder/shop.db", "--prefix", "x; y"], "table prefix"),
        (&["--db", "sqlite:shop.db", "--schema", "app"], "SQLite has no schemas"),
    ] {
        for command in [&["status"][..], &["migrate"], &["migrate", "--check"], &["events", "list"]] {
            let said = refused(&[command, arguments].concat());
            assert!(said.contains(word), "{said}");
            assert!(!said.contains("name and password") && !said.contains("server runs"), "{said}");
        }
    }
}

#[test]
fn who_is_not_there_is_told_so_with_what_to_look_at() {
    for url in [
        "postgres://me:secret@127.0.0.1:1/shop",
        "mysql://me:secret@127.0.0.1:1/shop",
        "postgres://me:secret@no-such-host.invalid/shop",
        "mysql://me:secret@no-such-host.invalid/shop",
    ] {
        for command in [&["status"][..], &["migrate"], &["migrate", "--check"], &["dead", "list"]] {
            let said = refused(&[command, &["--db", url]].concat());
            assert!(said.contains("the server can't be reached") && !said.contains("broke"), "{said}");
            assert!(said.contains("try: look whether the server runs"), "{said}");
        }
    }
}

#[test]
fn a_login_that_is_refused_is_told_from_a_database_that_is_missing() {
    for server in [Shared::Postgres, Shared::MariaDb] {
        let database = server.database();
        let url = database.url();
        let (base, name) = url.rsplit_once('/').expect("a database");
        let (scheme, rest) = base.split_once("://").expect("a URL");
        let (_, host) = rest.rsplit_once('@').expect("a user");
        for command in [&["status"][..], &["migrate"], &["migrate", "--check"]] {
            let said = refused(&[command, &["--db", &format!("{scheme}://nobody:wrong@{host}/{name}")]].concat());
            assert!(said.contains("try: look at name and password in the URL"), "{said}");
            let said = refused(&[command, &["--db", &format!("{base}/no_such_database")]].concat());
            assert!(said.contains("there is no such database") && !said.contains("pillarbox migrate"), "{said}");
        }
    }
}
