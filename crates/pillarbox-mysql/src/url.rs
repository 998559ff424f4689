//! What a database URL says, looked at before the driver reads it.
//!
//! The driver passes over parameters that it does not know: `ssl_mode=VERIFY_IDENTITY` for `ssl-mode` would be a connection
//! that nobody has verified, and may not even be encrypted. So a parameter is known, or known to do nothing here, or
//! refused. Errors and logs name the parameter, and never its value.

use std::str::FromStr as _;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

/// What the driver reads. Those that come first are the ones to be recommended.
const KNOWN: [&str; 14] = [
    "ssl-mode",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "socket",
    "charset",
    "collation",
    "time-zone",
    "statement-cache-capacity",
    "sslmode",
    "sslca",
    "sslcert",
    "sslkey",
    "timezone",
];
const RECOMMENDED: usize = 9;

/// What other drivers read, in the spelling of [`plain`], and what is not missed here: limits of time, pools, caches of
/// statements, the text's encoding (it is always utf8mb4), permissions that a connection is not in need of.
const OF_OTHERS: [&str; 34] = [
    "allowmultiqueries",
    "allownativepasswords",
    "allowpublickeyretrieval",
    "applicationname",
    "autoreconnect",
    "cacheprepstmts",
    "characterencoding",
    "checkconnliveness",
    "compress",
    "connectionlimit",
    "connecttimeout",
    "failoverreadonly",
    "interpolateparams",
    "maxallowedpacket",
    "multistatements",
    "parsetime",
    "pool",
    "poolsize",
    "pooltimeout",
    "prepstmtcachesize",
    "prepstmtcachesqllimit",
    "programname",
    "readtimeout",
    "reconnect",
    "rewritebatchedstatements",
    "sockettimeout",
    "tcpkeepalive",
    "tcpnodelay",
    "timeout",
    "uselegacydatetimecode",
    "useserverprepstmts",
    "useunicode",
    "writetimeout",
    "zerodatetimebehavior",
];

/// What other drivers read, and how it is called here.
const MEANT: [(&str, &str); 24] = [
    ("cafile", "ssl-ca"),
    ("clientcertificatekeystoreurl", "ssl-cert"),
    ("connectiontimezone", "time-zone"),
    ("loc", "time-zone"),
    ("localsocket", "socket"),
    ("requiressl", "ssl-mode"),
    ("serversslcert", "ssl-ca"),
    ("servertimezone", "time-zone"),
    ("socketpath", "socket"),
    ("ssl", "ssl-mode"),
    ("sslaccept", "ssl-mode"),
    ("sslcafile", "ssl-ca"),
    ("sslclientcert", "ssl-cert"),
    ("sslclientkey", "ssl-key"),
    ("sslrootcert", "ssl-ca"),
    ("sslverifycert", "ssl-mode"),
    ("sslverifyservercert", "ssl-mode"),
    ("tls", "ssl-mode"),
    ("trustcertificatekeystoreurl", "ssl-ca"),
    ("unixsocket", "socket"),
    ("usessl", "ssl-mode"),
    ("verifyca", "ssl-mode"),
    ("verifyidentity", "ssl-mode"),
    ("verifyservercertificate", "ssl-mode"),
];

/// How a connection is made, from a URL.
pub(crate) fn read(url: &str) -> Result<MySqlConnectOptions, StoreError> {
    let (whole, _) = url.split_once('#').unwrap_or((url, ""));
    let (place, query) = whole.split_once('?').unwrap_or((whole, ""));
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, _) = pair.split_once('=').unwrap_or((pair, ""));
        if KNOWN.contains(&key) {
            kept.push(pair);
        } else if OF_OTHERS.contains(&plain(key).as_str()) {
            tracing::warn!(parameter = key, "the database URL has a parameter of other drivers: it does nothing here");
        } else {
            return Err(rejected(&refusal(query, key)));
        }
    }
    // What the driver says of a URL may hold a part of it.
    let read = MySqlConnectOptions::from_str(&format!("{place}?{}", kept.join("&")));
    let options = read.map_err(|_| rejected(&misunderstood(&kept)))?;
    let verifies = matches!(options.get_ssl_mode(), MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
    if !verifies && kept.iter().any(|pair| pair.starts_with("ssl-ca=") || pair.starts_with("sslca=")) {
        tracing::warn!("`ssl-ca` in the database URL verifies nothing without `ssl-mode=VERIFY_IDENTITY` or VERIFY_CA");
    }
    at_host(options)
}

/// The host as the system wants it: an address of IPv6 without its brackets, and a path as a socket.
fn at_host(options: MySqlConnectOptions) -> Result<MySqlConnectOptions, StoreError> {
    let host = options.get_host().to_owned();
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return Ok(options.host(address));
    }
    if !host.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case("%2f")) {
        return Ok(options);
    }
    // The driver undoes the escapes of a parameter, and not those of a host.
    let escaped = host.replace('+', "%2B").replace('&', "%26");
    let read = MySqlConnectOptions::from_str(&format!("mysql://localhost?socket={escaped}"));
    let read = read.map_err(|_| rejected(&misunderstood(&[])))?;
    Ok(match read.get_socket() {
        Some(socket) => options.host("localhost").socket(socket),
        None => options,
    })
}

fn rejected(words: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, words)
}

fn misunderstood(kept: &[&str]) -> String {
    let mode = kept.iter().filter_map(|pair| pair.strip_prefix("ssl-mode=").or_else(|| pair.strip_prefix("sslmode=")));
    if mode.into_iter().any(|mode| MySqlSslMode::from_str(mode).is_err()) {
        return "`ssl-mode` in the database URL is none of DISABLED, PREFERRED, REQUIRED, VERIFY_CA and VERIFY_IDENTITY".into();
    }
    "the database URL can't be understood: use `mysql://user:password@host/database`, with %3F for a `?` in the \
     password, %2F for a `/` and %40 for a `@`"
        .into()
}

/// Why a parameter is refused.
fn refusal(query: &str, key: &str) -> String {
    let is_name = key.len() <= 40 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    // Of `user:1?secret@host`, and of `user:1@2?secret=3@host`, the half of a password would be named.
    if !is_name || query.contains('@') {
        return "the database URL has a parameter that is not known, or a `?` in its password, which is written %3F"
            .into();
    }
    if key == "pillarbox_pooler" {
        return "`pillarbox_pooler` is for PostgreSQL: leave it out of a URL of MySQL or MariaDB".into();
    }
    match nearest(key) {
        Some(near) => format!("the database URL has the parameter `{key}`, which is not known: did you mean `{near}`?"),
        None => format!(
            "the database URL has the parameter `{key}`, which is not known: leave it out; there are {}",
            KNOWN[..RECOMMENDED].join(", ")
        ),
    }
}

/// The known parameter that somebody may have meant.
fn nearest(key: &str) -> Option<&'static str> {
    let key = plain(key);
    if let Some((_, meant)) = MEANT.iter().find(|(other, _)| *other == key) {
        return Some(meant);
    }
    let distances = KNOWN[..RECOMMENDED].iter().map(|known| (slips(&key, &plain(known)), *known));
    distances.min_by_key(|(slips, _)| *slips).filter(|(slips, known)| *slips * 3 <= known.len()).map(|(_, known)| known)
}

/// A parameter without what drivers disagree on.
fn plain(key: &str) -> String {
    key.chars().filter(|c| !"-_".contains(*c)).map(|c| c.to_ascii_lowercase()).collect()
}

/// How many letters were left out, added or changed.
fn slips(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use pillarbox_testkit::told::{self, Log};

    use super::*;

    fn refused(url: &str) -> String {
        let error = read(url).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Rejected, "{url}");
        assert!(!told::by(&error).contains("hunter2"), "{error:?}");
        error.to_string()
    }

    #[test]
    fn what_the_driver_knows_is_passed_on() {
        let options = read(
            "mysql://me:hunter2@db.example:3307/shop?ssl-mode=verify_identity&ssl-ca=/ca.pem&charset=latin1&\
             collation=latin1_bin&socket=%2Frun%2Fx&&timezone=%2B00:00&statement-cache-capacity=7#part",
        )
        .unwrap();
        assert!(matches!(options.get_ssl_mode(), MySqlSslMode::VerifyIdentity));
        assert_eq!((options.get_host(), options.get_port()), ("db.example", 3307));
        assert_eq!((options.get_username(), options.get_database()), ("me", Some("shop")));
        assert_eq!((options.get_charset(), options.get_collation()), ("latin1", Some("latin1_bin")));
        assert_eq!(options.get_socket().and_then(|path| path.to_str()), Some("/run/x"));
        for known in KNOWN {
            let value = if known.starts_with("stat") { "1" } else { "required" };
            read(&format!("mysql://me@db/shop?{known}={value}")).unwrap();
        }
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_the_one_that_was_meant_and_without_its_value() {
        for (key, meant) in [
            ("ssl_mode", "ssl-mode"),
            ("sslMode", "ssl-mode"),
            ("SSL-MODE", "ssl-mode"),
            ("ssl-mod", "ssl-mode"),
            ("useSSL", "ssl-mode"),
            ("tls", "ssl-mode"),
            ("verify_identity", "ssl-mode"),
            ("ssl_ca", "ssl-ca"),
            ("sslrootcert", "ssl-ca"),
            ("ssl_cert", "ssl-cert"),
            ("unix_socket", "socket"),
            ("sockt", "socket"),
            ("serverTimezone", "time-zone"),
        ] {
            let words = refused(&format!("mysql://me:hunter2@db/shop?{key}=hunter2"));
            assert!(words.contains(&format!("`{key}`")) && words.contains(&format!("`{meant}`?")), "{key}: {words}");
        }
        for key in ["sessionVariables", "user", "init_command", "x"] {
            let words = refused(&format!("mysql://me:hunter2@db/shop?charset=utf8mb4&{key}=hunter2"));
            assert!(words.contains(&format!("`{key}`")) && words.contains("ssl-mode, ssl-ca"), "{words}");
        }
        let words = refused("mysql://me:hunter2@db/shop?pillarbox_pooler=hunter2");
        assert!(words.contains("`pillarbox_pooler`") && words.contains("PostgreSQL"), "{words}");
    }

    #[test]
    fn a_question_mark_in_the_password_does_not_make_it_a_parameter_that_is_told() {
        for url in [
            "mysql://me:1?hunter2@db/shop",
            "mysql://me:1?hunter2=x@db/shop",
            "mysql://me:p@ss?hunter2=1@db/shop",
            "mysql://me:pw@db?a b=hunter2",
        ] {
            assert!(refused(url).contains("%3F"), "{url}");
        }
    }

    #[test]
    fn parameters_of_other_drivers_that_do_no_harm_are_left_out_and_named_in_the_log() {
        let log = Log::new();
        let url = "mysql://me:hunter2@db/shop?connect_timeout=hunter2&useUnicode=hunter2&charset=utf8mb4";
        read(url).unwrap();
        let text = log.text();
        assert!(text.contains("connect_timeout") && text.contains("useUnicode"), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("charset"), "{text}");
        for key in OF_OTHERS {
            assert_eq!(key, plain(key));
        }
    }

    #[test]
    fn a_certificate_that_verifies_nothing_is_told() {
        for (url, warned) in [
            ("mysql://me@db/shop?ssl-ca=/hunter2", true),
            ("mysql://me@db/shop?ssl-mode=REQUIRED&sslca=/hunter2", true),
            ("mysql://me@db/shop?ssl-mode=VERIFY_CA&ssl-ca=/hunter2", false),
            ("mysql://me@db/shop", false),
        ] {
            let log = Log::new();
            read(url).unwrap();
            assert_eq!(log.text().contains("verifies nothing"), warned, "{url}");
            assert!(!log.text().contains("hunter2"));
        }
    }

    #[test]
    fn a_mode_that_is_none_is_refused_with_those_there_are() {
        assert!(refused("mysql://me:hunter2@db/shop?ssl-mode=hunter2").contains("VERIFY_IDENTITY"));
        assert!(refused("mysql://me:hunter2@db/shop?statement-cache-capacity=hunter2").contains("can't be understood"));
    }

    #[test]
    fn an_address_of_ipv6_loses_its_brackets() {
        for (url, host) in [
            ("mysql://me@[::1]:3306/shop", "::1"),
            ("mysql://me@[fe80::7]/shop", "fe80::7"),
            ("mysql://me@127.0.0.1/shop", "127.0.0.1"),
            ("mysql://me@db/shop", "db"),
        ] {
            assert_eq!(read(url).unwrap().get_host(), host, "{url}");
        }
    }

    #[test]
    fn a_path_in_the_place_of_a_host_is_a_socket() {
        for url in ["mysql://me@%2Frun%2Fmy+sql%2Fx/shop", "mysql://me@%2frun%2Fmy%2Bsql%2fx/shop?charset=utf8mb4"] {
            let options = read(url).unwrap();
            assert_eq!(options.get_socket().and_then(|path| path.to_str()), Some("/run/my+sql/x"));
            assert_eq!((options.get_host(), options.get_database()), ("localhost", Some("shop")));
        }
    }
}
