//! What a database URL says, looked at before the driver reads it.
//!
//! The driver passes over parameters that it does not know: `ssl_mode=verify-full` for `sslmode` would be a connection
//! that nobody has verified, and may not even be encrypted. It logs them with their values, `sslpassword` among them. So a
//! parameter is known, or known to do nothing here, or refused. Errors and logs name the parameter, and never its value.

use std::str::FromStr as _;

use pillarbox_core::port::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// What the driver reads, and we. Those that come first are the ones to be recommended.
const KNOWN: [&str; 19] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "port",
    "dbname",
    "user",
    "application_name",
    "options",
    POOLER,
    "statement-cache-capacity",
    "hostaddr",
    "password",
    "ssl-mode",
    "ssl-root-cert",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
];
const RECOMMENDED: usize = 12;

/// Our own.
const POOLER: &str = "pillarbox_pooler";

/// What other drivers read, in the spelling of [`plain`], and what is not missed here: limits of time, pools, the choice
/// among several servers, the text's encoding (it is always UTF-8), ways to log in that a server would have to ask for.
const OF_OTHERS: [&str; 39] = [
    "binaryparameters",
    "channelbinding",
    "clientencoding",
    "connectionlimit",
    "connecttimeout",
    "fallbackapplicationname",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "keepalives",
    "keepalivescount",
    "keepalivesidle",
    "keepalivesinterval",
    "krbsrvname",
    "loadbalancehosts",
    "logintimeout",
    "maxprotocolversion",
    "minprotocolversion",
    "pgbouncer",
    "pool",
    "poolhealthcheckperiod",
    "poolmaxconnidletime",
    "poolmaxconnlifetime",
    "poolmaxconnlifetimejitter",
    "poolmaxconns",
    "poolminconns",
    "poolsize",
    "pooltimeout",
    "rewritebatchedinserts",
    "sockettimeout",
    "sslcompression",
    "sslmaxprotocolversion",
    "sslnegotiation",
    "sslsni",
    "supa",
    "targetsessionattrs",
    "tcpkeepalive",
    "tcpusertimeout",
    "workaround",
];

/// What other drivers read, and how it is called here.
const MEANT: [(&str, &str); 24] = [
    ("cafile", "sslrootcert"),
    ("currentschema", "options[search_path]"),
    ("database", "dbname"),
    ("locktimeout", "options[lock_timeout]"),
    ("pooler", POOLER),
    ("preparedstatementcachequeries", "statement-cache-capacity"),
    ("preparethreshold", "statement-cache-capacity"),
    ("requiressl", "sslmode"),
    ("role", "options[role]"),
    ("schema", "options[search_path]"),
    ("searchpath", "options[search_path]"),
    ("socket", "host"),
    ("ssl", "sslmode"),
    ("sslaccept", "sslmode"),
    ("sslidentity", "sslcert"),
    ("sslverify", "sslmode"),
    ("statementcachesize", "statement-cache-capacity"),
    ("statementtimeout", "options[statement_timeout]"),
    ("timezone", "options[timezone]"),
    ("tls", "sslmode"),
    ("unixsocket", "host"),
    ("username", "user"),
    ("usessl", "sslmode"),
    ("verifyfull", "sslmode"),
];

/// How a connection is made, from a URL.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) connect: PgConnectOptions,
    /// Whether a pooler in transaction mode is in between.
    pub(crate) behind_pooler: bool,
}

pub(crate) fn read(url: &str) -> Result<Read, StoreError> {
    let (whole, _) = url.split_once('#').unwrap_or((url, ""));
    let (place, query) = whole.split_once('?').unwrap_or((whole, ""));
    let mut behind_pooler = false;
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (key, value) {
            (POOLER, "transaction") | ("pgbouncer", "true") => behind_pooler = true,
            (POOLER, "session") => {}
            (POOLER, _) => {
                return Err(rejected(&format!(
                    "`{POOLER}` in the database URL is neither `transaction` nor `session`"
                )));
            }
            ("channel_binding" | "gssencmode", "require") => {
                return Err(rejected(&format!(
                    "`{key}=require` in the database URL is more than can be had here: leave it out, and let \
                     `sslmode=verify-full` make sure of the server"
                )));
            }
            _ if KNOWN.contains(&key) || is_option(key) => kept.push(pair.to_owned()),
            _ if OF_OTHERS.contains(&plain(key).as_str()) => {
                tracing::warn!(
                    parameter = key,
                    "the database URL has a parameter of other drivers: it does nothing here"
                );
            }
            _ => return Err(rejected(&refusal(query, pair))),
        }
    }
    let (place, at) = place_of(place)?;
    // What is given for itself comes later, and wins.
    let pairs = at.into_iter().chain(kept).collect::<Vec<_>>();
    // What the driver says of a URL may hold a part of it.
    let connect = PgConnectOptions::from_str(&format!("{place}?{}", pairs.join("&")));
    let connect = connect.map_err(|_| rejected(misunderstood(&pairs)))?;
    Ok(Read { connect: verified(connect, &pairs), behind_pooler })
}

/// The driver reads neither an address of IPv6, nor a URL with a user and without a host, as `host=/run/postgresql` among
/// the parameters has it. Both are parameters, too.
fn place_of(place: &str) -> Result<(String, Vec<String>), StoreError> {
    let Some((scheme, rest)) = place.split_once("://") else { return Ok((place.to_owned(), Vec::new())) };
    let (authority, database) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.contains(',') {
        return Err(rejected(
            "the database URL names several hosts, and one is expected: take a name or a proxy that leads to the primary",
        ));
    }
    let address = host.strip_prefix('[').and_then(|host| host.split_once(']'));
    if let Some((address, _)) = address {
        return Ok((place.to_owned(), vec![format!("host={address}")]));
    }
    if authority.is_empty() || !(host.is_empty() || host.starts_with(':')) {
        return Ok((place.to_owned(), Vec::new()));
    }
    // A parameter has other letters to be escaped.
    let escaped = |text: &str| text.replace('+', "%2B").replace('&', "%26");
    let (user, password) = login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
    let mut pairs = Vec::new();
    pairs.extend(Some(user).filter(|user| !user.is_empty()).map(|user| format!("user={}", escaped(user))));
    pairs.extend(password.map(|password| format!("password={}", escaped(password))));
    pairs.extend(host.strip_prefix(':').filter(|port| !port.is_empty()).map(|port| format!("port={}", escaped(port))));
    Ok((format!("{scheme}://{database}"), pairs))
}

/// As in libpq, a root certificate is there to verify the server by: the driver alone would take any server under
/// `sslmode=require`.
fn verified(connect: PgConnectOptions, pairs: &[String]) -> PgConnectOptions {
    let has_root =
        ["sslrootcert=", "ssl-root-cert=", "ssl-ca="].iter().any(|key| pairs.iter().any(|pair| pair.starts_with(key)));
    match connect.get_ssl_mode() {
        PgSslMode::Require if has_root => connect.ssl_mode(PgSslMode::VerifyCa),
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer if has_root => {
            tracing::warn!(
                "`sslrootcert` in the database URL verifies nothing without `sslmode=verify-full` or verify-ca"
            );
            connect
        }
        _ => connect,
    }
}

/// A setting of the session: `options[search_path]`.
fn is_option(key: &str) -> bool {
    let key = key.replace("%5B", "[").replace("%5b", "[").replace("%5D", "]").replace("%5d", "]");
    key.strip_prefix("options[").and_then(|rest| rest.strip_suffix(']')).is_some_and(|name| !name.is_empty())
}

fn rejected(words: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Rejected, words)
}

fn misunderstood(pairs: &[String]) -> &'static str {
    let modes =
        pairs.iter().filter_map(|pair| pair.strip_prefix("sslmode=").or_else(|| pair.strip_prefix("ssl-mode=")));
    if modes.into_iter().any(|mode| PgSslMode::from_str(mode).is_err()) {
        return "`sslmode` in the database URL is none of disable, allow, prefer, require, verify-ca and verify-full";
    }
    "the database URL can't be understood: use `postgres://user:password@host:port/database?sslmode=...`, with %3F for a \
     `?` in the password, %2F for a `/`, %23 for a `#` and %40 for a `@`"
}

/// Why a parameter is refused.
fn refusal(query: &str, pair: &str) -> String {
    let (key, value) = pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value)));
    let near = nearest(key);
    let is_name = key.len() <= 40 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    // Of `user:1?secret@host`, of `user:1@2?secret=3@host` and of `password=1&secret` the half of a password would be named.
    if !is_name || (value.is_none() && near.is_none()) || query.contains('@') {
        return "the database URL has a parameter that is not known, or a `?` or a `&` in its password, which are \
                written %3F and %26"
            .into();
    }
    if plain(key) == "sslpassword" {
        return "the database URL has the parameter `sslpassword`, and a key that is encrypted can't be read here: give \
                `sslkey` one that is not"
            .into();
    }
    match near {
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
    // A parameter of libpq, and no slip.
    if key == "sslcrl" {
        return None;
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

    /// With the words of the driver among the log.
    fn read_logged(url: &str) -> (Read, String) {
        let log = Log::new();
        let read = read(url).unwrap();
        (read, log.text())
    }

    #[test]
    fn what_the_driver_knows_is_passed_on() {
        let (read, log) = read_logged(
            "postgresql://me:hunter2@db.example:5433/shop?sslmode=verify-full&sslrootcert=/ca.pem&&application_name=shop&\
             options[search_path]=a,b&options%5Block_timeout%5D=1s&options=-c%20jit%3Doff&statement-cache-capacity=7#part",
        );
        let connect = read.connect;
        assert!(matches!(connect.get_ssl_mode(), PgSslMode::VerifyFull));
        assert_eq!((connect.get_host(), connect.get_port()), ("db.example", 5433));
        assert_eq!((connect.get_username(), connect.get_database()), ("me", Some("shop")));
        assert_eq!(connect.get_application_name(), Some("shop"));
        assert_eq!(connect.get_options(), Some("-c search_path=a,b -c lock_timeout=1s -c jit=off"));
        assert!(!log.contains("WARN"), "{log}");
        for known in KNOWN {
            let value = match plain(known).as_str() {
                "sslmode" => "require",
                "port" | "statementcachecapacity" => "1",
                "hostaddr" => "127.0.0.1",
                "pillarboxpooler" => "session",
                _ => "hunter2",
            };
            let (_, log) = read_logged(&format!("postgres://me@db/shop?sslmode=verify-ca&{known}={value}"));
            assert!(!log.contains("WARN"), "{log}");
        }
    }

    #[test]
    fn a_misspelt_parameter_is_refused_with_the_one_that_was_meant_and_without_its_value() {
        for (key, meant) in [
            ("ssl_mode", "sslmode"),
            ("sslMode", "sslmode"),
            ("SSLMODE", "sslmode"),
            ("sslmod", "sslmode"),
            ("ssl", "sslmode"),
            ("tls", "sslmode"),
            ("requiressl", "sslmode"),
            ("sslaccept", "sslmode"),
            ("ssl_root_cert", "sslrootcert"),
            ("sslrootcrt", "sslrootcert"),
            ("ssl_key", "sslkey"),
            ("ApplicationName", "application_name"),
            ("search_path", "options[search_path]"),
            ("schema", "options[search_path]"),
            ("pillarbox_poler", "pillarbox_pooler"),
            ("hst", "host"),
        ] {
            let log = Log::new();
            let words = refused(&format!("postgres://me:hunter2@db/shop?{key}=hunter2"));
            assert!(words.contains(&format!("`{key}`")) && words.contains(&format!("`{meant}`?")), "{key}: {words}");
            assert_eq!(log.text(), "");
        }
        // What guards the connection is not dropped, either.
        for key in ["service", "sslcrl", "require_auth", "requirepeer", "ssl_min_protocol_version", "passfile", "x"] {
            let words = refused(&format!("postgres://me:hunter2@db/shop?application_name=a&{key}=hunter2"));
            assert!(words.contains(&format!("`{key}`")) && words.contains("sslmode, sslrootcert"), "{words}");
        }
        assert!(refused("postgres://me@db/shop?options[search_path=hunter2").contains("not known"));
    }

    #[test]
    fn an_encrypted_key_is_refused_without_its_password() {
        let log = Log::new();
        let words = refused("postgres://me@db/shop?sslmode=verify-full&sslkey=/k.pem&sslpassword=hunter2");
        assert!(words.contains("`sslpassword`") && words.contains("encrypted"), "{words}");
        assert_eq!(log.text(), "");
    }

    #[test]
    fn what_can_not_be_kept_is_refused() {
        for key in ["channel_binding", "gssencmode"] {
            assert!(refused(&format!("postgres://me:hunter2@db/shop?{key}=require")).contains("more than can be had"));
            read(&format!("postgres://me:hunter2@db/shop?{key}=prefer")).unwrap();
        }
        assert!(refused("postgres://me:hunter2@a,b/shop").contains("several hosts"));
        assert!(refused("postgres://me:hunter2@a:1,b:2/shop").contains("several hosts"));
    }

    #[test]
    fn half_a_password_is_no_parameter_that_is_told() {
        for url in [
            "postgres://me:1?hunter2@db/shop",
            "postgres://me:1?hunter2=x@db/shop",
            "postgres://me:p@ss?hunter2=1@db/shop",
            "postgres://me:pw@db?a b=hunter2",
            "postgres://me@db/shop?password=1&hunter2",
        ] {
            assert!(refused(url).contains("%3F"), "{url}");
        }
    }

    #[test]
    fn parameters_of_other_drivers_that_do_no_harm_are_left_out_and_named_in_the_log() {
        let url = "postgres://me:hunter2@db/shop?connect_timeout=hunter2&target_session_attrs=hunter2&keepalives=1";
        let (_, log) = read_logged(url);
        assert!(["connect_timeout", "target_session_attrs", "keepalives"].iter().all(|key| log.contains(key)), "{log}");
        assert!(!log.contains("hunter2"), "{log}");
        for key in OF_OTHERS {
            assert_eq!(key, plain(key));
        }
    }

    #[test]
    fn a_root_certificate_verifies() {
        for (query, verifies, warned) in [
            ("sslmode=require&sslrootcert=/hunter2", true, false),
            ("sslmode=require&ssl-ca=/hunter2", true, false),
            ("sslmode=verify-ca&sslrootcert=/hunter2", true, false),
            ("sslmode=prefer&sslrootcert=/hunter2", false, true),
            ("sslrootcert=/hunter2", false, true),
            ("sslmode=require", false, false),
        ] {
            let (read, log) = read_logged(&format!("postgres://me@db/shop?{query}"));
            assert_eq!(matches!(read.connect.get_ssl_mode(), PgSslMode::VerifyCa), verifies, "{query}");
            assert_eq!(log.contains("verifies nothing"), warned, "{query}");
            assert!(!log.contains("hunter2"), "{log}");
        }
    }

    #[test]
    fn a_mode_that_is_none_is_refused_with_those_there_are() {
        assert!(refused("postgres://me:hunter2@db/shop?sslmode=hunter2").contains("verify-full"));
        assert!(refused("postgres://me:hunter2@db/shop?port=hunter2").contains("can't be understood"));
    }

    #[test]
    fn the_pooler_is_told_by_a_parameter() {
        for (query, pooler) in [
            ("", false),
            ("pillarbox_pooler=transaction", true),
            ("sslmode=disable&pillarbox_pooler=transaction&port=2", true),
            ("pillarbox_pooler=session", false),
            // As Prisma calls it.
            ("pgbouncer=true&connection_limit=1", true),
            ("pgbouncer=false", false),
        ] {
            assert_eq!(read(&format!("postgres://me@db/shop?{query}")).unwrap().behind_pooler, pooler, "{query}");
        }
        let words = refused("postgres://me:hunter2@db/shop?pillarbox_pooler=hunter2");
        assert!(words.contains("neither `transaction` nor `session`"), "{words}");
    }

    #[test]
    fn an_address_of_ipv6_loses_its_brackets() {
        for (url, host, port) in [
            ("postgres://me@[::1]:5433/shop", "::1", 5433),
            ("postgres://me:hunter2@[fe80::7]/shop?sslmode=disable", "fe80::7", 5432),
            ("postgres://[::1]", "::1", 5432),
            ("postgres://me@[::1]:5433/shop?host=db", "db", 5433),
            ("postgres://me@127.0.0.1/shop", "127.0.0.1", 5432),
        ] {
            let connect = read(url).unwrap().connect;
            assert_eq!((connect.get_host(), connect.get_port()), (host, port), "{url}");
        }
    }

    #[test]
    fn a_socket_stands_in_the_place_of_the_host_or_among_the_parameters() {
        let socket = Some("/run/post+gres");
        for (url, user) in [
            ("postgres://me@%2Frun%2Fpost%2Bgres/shop", Some("me")),
            ("postgres:///shop?host=/run/post%2Bgres", None),
            ("postgres://m%40e@/shop?host=%2Frun%2Fpost%2Bgres", Some("m@e")),
            ("postgres://me:hun+ter%262@/shop?host=/run/post%2Bgres", Some("me")),
            ("postgres://me@:5433/shop?host=/run/post%2Bgres", Some("me")),
        ] {
            let connect = read(url).unwrap().connect;
            assert_eq!(connect.get_socket().and_then(|path| path.to_str()), socket, "{url}");
            assert_eq!(connect.get_database(), Some("shop"));
            assert!(user.is_none_or(|user| connect.get_username() == user), "{url}");
            assert_eq!(connect.get_port(), if url.contains("5433") { 5433 } else { 5432 });
        }
    }
}
