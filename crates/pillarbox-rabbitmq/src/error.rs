//! What the client's errors mean to the relay.

use std::fmt;

use lapin::{
    Error, ErrorKind,
    message::BasicReturnMessage,
    protocol::{AMQPErrorKind, AMQPSoftError},
};
use pillarbox_core::port::SinkError;

use crate::Unroutable;

/// A setting that can't be. Not to be mended by waiting.
pub(crate) fn refused(words: impl fmt::Display) -> SinkError {
    SinkError::rejected(format_args!("rabbitmq: {words}"))
}

/// No message would get through.
pub(crate) fn unavailable(error: &Error) -> SinkError {
    SinkError::unavailable(words(error))
}

/// Why a channel was closed in the middle of one message.
pub(crate) fn refusal(error: &Error) -> SinkError {
    let words = words(error);
    match soft(error) {
        Some(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE) => SinkError::rejected(words),
        // Rights to a topic are about this message, those to an exchange are about all of them.
        Some(AMQPSoftError::ACCESSREFUSED) if words.contains("access to topic") => SinkError::rejected(words),
        Some(AMQPSoftError::NOROUTE | AMQPSoftError::NOCONSUMERS | AMQPSoftError::RESOURCELOCKED) => {
            SinkError::failed(words)
        }
        Some(AMQPSoftError::ACCESSREFUSED | AMQPSoftError::NOTFOUND) | None => SinkError::unavailable(words),
    }
}

/// The server closed the channel, and not the connection.
pub(crate) fn is_refusal(error: &Error) -> bool {
    soft(error).is_some()
}

/// The server had no queue for it.
pub(crate) fn unroutable(returned: &BasicReturnMessage, unroutable: Unroutable) -> SinkError {
    let exchange = match returned.delivery.exchange.as_str() {
        "" => "the default exchange",
        name => name,
    };
    let words = format!(
        "{} {}: {exchange} has no queue for the routing key {:?}",
        returned.reply_code,
        returned.reply_text,
        returned.delivery.routing_key.as_str()
    );
    match unroutable {
        Unroutable::Retry => SinkError::failed(words),
        Unroutable::Reject => SinkError::rejected(words),
    }
}

/// The server said no without a reason, as AMQP has it.
pub(crate) fn nack() -> SinkError {
    SinkError::failed("the server has not taken it (basic.nack): a queue is full, or could not store it")
}

fn soft(error: &Error) -> Option<AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft.clone()),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => format!("{} {}", error.get_id(), error.get_message()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPHardError};
    use pillarbox_core::port::SinkErrorKind::{Failed, Rejected, Unavailable};

    use super::*;

    #[test]
    fn a_closed_channel_tells_whose_fault_it_is() {
        let of = |kind: AMQPErrorKind, words: &str| {
            Error::from(ErrorKind::ProtocolError(AMQPError::new(kind, words.into())))
        };
        for (kind, words, expected) in [
            (AMQPSoftError::PRECONDITIONFAILED, "PRECONDITION_FAILED - message size 5 is larger", Rejected),
            (AMQPSoftError::ACCESSREFUSED, "ACCESS_REFUSED - access to topic 'a' in exchange 'x'", Rejected),
            (AMQPSoftError::ACCESSREFUSED, "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused", Unavailable),
            (AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'x' in vhost '/'", Unavailable),
            (AMQPSoftError::RESOURCELOCKED, "RESOURCE_LOCKED", Failed),
        ] {
            let error = of(kind.into(), words);
            assert!(is_refusal(&error));
            assert_eq!(refusal(&error).kind(), expected, "{words}");
            assert!(refusal(&error).to_string().contains(words));
        }
        let hard = of(AMQPHardError::CONNECTIONFORCED.into(), "CONNECTION_FORCED - broker forced connection closure");
        assert!(!is_refusal(&hard));
        assert_eq!(unavailable(&hard).to_string(), "320 CONNECTION_FORCED - broker forced connection closure");
    }
}
