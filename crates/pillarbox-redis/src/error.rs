//! What Redis and its client say, as the sink's errors.

use pillarbox_core::port::SinkError;
use redis::{ConnectionAddr, RedisError};

/// No message got through: the connection's fault, or the server's as a whole.
pub(crate) fn unreachable(addr: &ConnectionAddr, error: &RedisError) -> SinkError {
    SinkError::unavailable(format_args!("redis at {addr}: {}", words(error)))
}

/// It did not answer in time.
pub(crate) fn silent(addr: &ConnectionAddr) -> SinkError {
    SinkError::unavailable(format_args!("redis at {addr} does not answer in time"))
}

/// The server's answer to one message.
pub(crate) fn answer(error: &RedisError) -> SinkError {
    let words = words(error);
    match error.code() {
        // No entry would get through, whatever it holds. Without a code it is the client's own.
        None
        | Some(
            "LOADING" | "READONLY" | "OOM" | "MISCONF" | "NOREPLICAS" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN"
            | "BUSY" | "NOAUTH" | "WRONGPASS",
        ) => SinkError::unavailable(words),
        Some("WRONGTYPE") => SinkError::rejected(words),
        Some("ERR") if words.contains("Elements are too large") => SinkError::rejected(words),
        Some("MOVED" | "ASK") => SinkError::failed(format_args!(
            "{words}: the stream lives on another node, and Redis Cluster is not supported"
        )),
        Some(_) => SinkError::failed(words),
    }
}

/// As the server said it, where it was the server.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind::{Failed, Rejected, Unavailable};

    use super::*;

    fn said(line: &str) -> SinkError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect(line);
        answer(&value.extract_error().expect_err(line))
    }

    #[test]
    fn the_servers_word_decides() {
        for (line, kind) in [
            ("LOADING Redis is loading the dataset in memory", Unavailable),
            ("READONLY You can't write against a read only replica.", Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", Unavailable),
            (
                "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist on disk.",
                Unavailable,
            ),
            ("NOREPLICAS Not enough good replicas to write.", Unavailable),
            ("CLUSTERDOWN The cluster is down", Unavailable),
            ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Unavailable),
            ("BUSY Redis is busy running a script.", Unavailable),
            ("NOAUTH Authentication required.", Unavailable),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Rejected),
            ("ERR Elements are too large to be stored", Rejected),
            ("ERR unknown command 'XADD'", Failed),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", Failed),
        ] {
            let error = said(line);
            assert_eq!(error.kind(), kind, "{line}");
            assert_eq!(error.to_string(), line);
        }
        let error = said("MOVED 3999 127.0.0.1:6381");
        assert_eq!(error.kind(), Failed);
        assert!(error.to_string().starts_with("MOVED 3999 127.0.0.1:6381"), "{error}");
    }
}
