//! What NATS and its client say, as the sink's errors.

use std::{error::Error, fmt};

use async_nats::jetstream::{
    self, ErrorCode,
    context::{PublishError, PublishErrorKind},
};
use pillarbox_core::port::SinkError;

/// No message got through: the connection's fault, or the server's as a whole.
pub(crate) fn unreachable(servers: &str, error: impl fmt::Display) -> SinkError {
    SinkError::unavailable(format_args!("nats at {servers}: {error}"))
}

/// The server says that this login may not publish there.
pub(crate) fn forbidden(subject: &str) -> SinkError {
    SinkError::failed(format_args!("permissions violation for publish to {subject}"))
}

/// It did not answer in time.
pub(crate) fn silent(servers: &str) -> SinkError {
    unreachable(servers, "no answer in time")
}

/// Somebody will create it: not the message's end.
pub(crate) fn no_stream(subject: &str) -> SinkError {
    SinkError::failed(format_args!(
        "no stream takes the subject {subject}: create one, or give the sink's option stream a name and subjects"
    ))
}

/// The answer to one message.
pub(crate) fn answer(servers: &str, subject: &str, error: &PublishError, is_lost: bool) -> SinkError {
    match error.kind() {
        PublishErrorKind::StreamNotFound => no_stream(subject),
        PublishErrorKind::TimedOut => silent(servers),
        PublishErrorKind::BrokenPipe => unreachable(servers, "the connection is lost"),
        // The client knows how much the server takes, and sends nothing.
        PublishErrorKind::MaxPayloadExceeded => SinkError::unfit(error),
        PublishErrorKind::MaxAckPending
        | PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::WrongLastSequence
        | PublishErrorKind::Other => match error.source().and_then(|source| source.downcast_ref()) {
            Some(told) => by_code(subject, told),
            None if is_lost => unreachable(servers, "the connection is lost"),
            // Somebody answered who is no stream.
            None => SinkError::failed(error),
        },
    }
}

/// What the server says of a stream that is full.
const FULL: [&str; 2] = ["maximum messages exceeded", "maximum bytes exceeded"];

/// What JetStream says.
fn by_code(subject: &str, error: &jetstream::Error) -> SinkError {
    let words = format!("{subject}: {error}");
    match error.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM
        | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM
        | ErrorCode::STREAM_SEALED => SinkError::rejected(words),
        // No message would get through, whatever its subject.
        ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_ASSIGNED
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::CLUSTER_NO_PEERS
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        | ErrorCode::NO_ACCOUNT
        | ErrorCode::NO_LIMITS
        | ErrorCode::STREAM_TOO_MANY_REQUESTS => SinkError::unavailable(words),
        // Full, with `discard new`: somebody has to make room, or to read. A subject that is full is another's affair.
        ErrorCode::STREAM_STORE_FAILED if FULL.iter().any(|full| words.contains(full)) => SinkError::unavailable(words),
        _ => SinkError::failed(words),
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind::{self, Failed, Rejected, Unavailable};

    use super::*;

    fn told(code: u64, words: &str) -> SinkError {
        let text = format!(r#"{{"code": 400, "err_code": {code}, "description": "{words}"}}"#);
        let error: jetstream::Error = serde_json::from_str(&text).expect("an error");
        answer("host", "orders", &PublishError::with_source(PublishErrorKind::Other, error), false)
    }

    #[test]
    fn the_servers_word_decides() {
        for (code, words, kind) in [
            (10054, "message size exceeds maximum allowed", Rejected),
            (10097, "header size exceeds maximum allowed of 64k", Rejected),
            (10109, "invalid operation on sealed stream", Rejected),
            (10077, "maximum messages exceeded", Unavailable),
            (10077, "maximum bytes exceeded", Unavailable),
            (10077, "maximum messages per subject exceeded", Failed),
            (10118, "stream is offline", Failed),
            (10008, "JetStream system temporarily unavailable", Unavailable),
            (10023, "insufficient resources", Unavailable),
            (10047, "insufficient storage resources available", Unavailable),
            (10076, "JetStream not enabled", Unavailable),
        ] {
            let error = told(code, words);
            assert_eq!(error.kind(), kind, "{words}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn the_clients_word_decides() {
        let kind = |kind: PublishErrorKind, is_lost| answer("host", "orders", &PublishError::new(kind), is_lost).kind();
        let expected: [(PublishErrorKind, SinkErrorKind); 4] = [
            (PublishErrorKind::StreamNotFound, Failed),
            (PublishErrorKind::TimedOut, Unavailable),
            (PublishErrorKind::BrokenPipe, Unavailable),
            (PublishErrorKind::MaxPayloadExceeded, Rejected),
        ];
        for (said, meant) in expected {
            assert_eq!(kind(said, false), meant, "{said}");
        }
        assert_eq!(kind(PublishErrorKind::Other, true), Unavailable);
        assert_eq!(kind(PublishErrorKind::Other, false), Failed);
    }
}
