//! What the client's errors and the server's reasons mean to the relay.

use std::fmt;

use pillarbox_core::port::{Sent, SinkError};
use rumqttc::v5::{
    ConnectionError, StateError,
    mqttbytes::{
        Error as PacketError,
        v5::{DisconnectReasonCode as Goodbye, PubAck, PubAckReason},
    },
};

use crate::Unroutable;

/// Why a connection has ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    /// For those who had no answer.
    pub(crate) error: SinkError,
    /// What it means for a message that was alone on the connection, if it ended for a message.
    pub(crate) blame: Option<SinkError>,
    /// There was no goodbye, or it was lost: nobody knows why.
    pub(crate) is_cut: bool,
}

/// A setting that can't be. Not to be mended by waiting.
pub(crate) fn refused(words: impl fmt::Display) -> SinkError {
    SinkError::rejected(format_args!("mqtt: {words}"))
}

/// The server's answer to one message.
pub(crate) fn answer(ack: &PubAck, unroutable: Unroutable) -> Sent {
    let words = || {
        let explained = ack.properties.as_ref().and_then(|properties| properties.reason_string.as_deref());
        let (code, name) = (code(ack.reason), spoken(ack.reason));
        match explained {
            Some(explained) => format!("{name} (0x{code:02X}): {explained}"),
            None => format!("{name} (0x{code:02X})"),
        }
    };
    match ack.reason {
        PubAckReason::Success => Ok(()),
        PubAckReason::NoMatchingSubscribers => match unroutable {
            Unroutable::Accept => Ok(()),
            Unroutable::Retry => Err(SinkError::failed(dropped(words()))),
            Unroutable::Reject => Err(SinkError::rejected(dropped(words()))),
        },
        PubAckReason::NotAuthorized | PubAckReason::TopicNameInvalid | PubAckReason::PayloadFormatInvalid => {
            Err(SinkError::rejected(words()))
        }
        PubAckReason::UnspecifiedError
        | PubAckReason::ImplementationSpecificError
        | PubAckReason::PacketIdentifierInUse
        | PubAckReason::QuotaExceeded => Err(SinkError::failed(words())),
    }
}

fn dropped(words: impl fmt::Display) -> String {
    format!(
        "{words}: nobody has subscribed to the topic, and the server drops it; let somebody subscribe, or set the sink's \
         option unroutable to accept"
    )
}

impl End {
    pub(crate) fn new(words: impl fmt::Display) -> Self {
        Self { error: SinkError::unavailable(words), blame: None, is_cut: false }
    }

    fn cut(words: impl fmt::Display) -> Self {
        Self { is_cut: true, ..Self::new(words) }
    }

    pub(crate) fn of(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ConnectionRefused(code) => {
                Self::new(format_args!("the server has refused the connection: {}", spoken(code)))
            }
            ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, reason_string }) => {
                let mut words = format!("{} (0x{:02X})", spoken(reason_code), *reason_code as u8);
                if let Some(explained) = reason_string {
                    words = format!("{words}: {explained}");
                }
                let blame = is_for_a_message(*reason_code).then(|| SinkError::rejected(&words));
                Self { blame, ..Self::new(format_args!("the server has ended the connection: {words}")) }
            }
            // A reason that the client does not know. Mosquitto answers so to what is larger than its message_size_limit.
            ConnectionError::MqttState(StateError::Deserialization(PacketError::InvalidConnectReturnCode(code))) => {
                let blame = match code {
                    0x95 => SinkError::rejected("packet too large (0x95)"),
                    code => SinkError::failed(format_args!("reason 0x{code:02X}")),
                };
                Self { blame: Some(blame.clone()), ..Self::new(blame) }
            }
            ConnectionError::MqttState(StateError::ConnectionAborted) => Self::cut("the server has cut the connection"),
            // The last is what the client has for what can't be read or written.
            ConnectionError::Io(error)
            | ConnectionError::MqttState(StateError::Io(error) | StateError::Deserialization(PacketError::Io(error))) => {
                Self::cut(error)
            }
            ConnectionError::MqttState(StateError::AwaitPingResp) => Self::new("no sign of life from the server"),
            error => Self::new(error),
        }
    }
}

/// Reasons for a goodbye that may be about what was said, and not about who said it or when.
fn is_for_a_message(reason: Goodbye) -> bool {
    matches!(
        reason,
        Goodbye::MalformedPacket
            | Goodbye::ProtocolError
            | Goodbye::ImplementationSpecificError
            | Goodbye::NotAuthorized
            | Goodbye::TopicNameInvalid
            | Goodbye::PacketTooLarge
            | Goodbye::PayloadFormatInvalid
    )
}

fn code(reason: PubAckReason) -> u8 {
    match reason {
        PubAckReason::Success => 0x00,
        PubAckReason::NoMatchingSubscribers => 0x10,
        PubAckReason::UnspecifiedError => 0x80,
        PubAckReason::ImplementationSpecificError => 0x83,
        PubAckReason::NotAuthorized => 0x87,
        PubAckReason::TopicNameInvalid => 0x90,
        PubAckReason::PacketIdentifierInUse => 0x91,
        PubAckReason::QuotaExceeded => 0x97,
        PubAckReason::PayloadFormatInvalid => 0x99,
    }
}

/// `NotAuthorized` is "not authorized".
pub(crate) fn spoken(reason: impl fmt::Debug) -> String {
    let mut words = String::new();
    for c in format!("{reason:?}").chars() {
        if c.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(c.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use pillarbox_core::port::SinkErrorKind::{self, Failed, Rejected};
    use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, PubAckProperties};

    use super::*;

    #[test]
    fn each_reason_of_an_answer_has_its_meaning() {
        use PubAckReason as R;
        let expected: [(R, Option<SinkErrorKind>); 9] = [
            (R::Success, None),
            (R::NoMatchingSubscribers, Some(Failed)),
            (R::UnspecifiedError, Some(Failed)),
            (R::ImplementationSpecificError, Some(Failed)),
            (R::NotAuthorized, Some(Rejected)),
            (R::TopicNameInvalid, Some(Rejected)),
            (R::PacketIdentifierInUse, Some(Failed)),
            (R::QuotaExceeded, Some(Failed)),
            (R::PayloadFormatInvalid, Some(Rejected)),
        ];
        for (reason, kind) in expected {
            let answer = answer(&PubAck { pkid: 1, reason, properties: None }, Unroutable::Retry);
            assert_eq!(answer.err().map(|error| error.kind()), kind, "{reason:?}");
        }
        for (unroutable, kind) in [(Unroutable::Accept, None), (Unroutable::Reject, Some(Rejected))] {
            let ack = PubAck { pkid: 1, reason: R::NoMatchingSubscribers, properties: None };
            assert_eq!(answer(&ack, unroutable).err().map(|error| error.kind()), kind, "{unroutable:?}");
        }
        let properties = PubAckProperties { reason_string: Some("not yours".into()), user_properties: Vec::new() };
        let ack = PubAck { pkid: 1, reason: R::NotAuthorized, properties: Some(properties) };
        assert_eq!(
            answer(&ack, Unroutable::Retry).expect_err("a refusal").to_string(),
            "not authorized (0x87): not yours"
        );
    }

    #[test]
    fn an_end_tells_whether_a_message_is_to_blame() {
        let goodbye = |reason_code| {
            End::of(&ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, reason_string: None }))
        };
        let end = goodbye(Goodbye::PacketTooLarge);
        assert_eq!(
            end.blame.map(|error| (error.kind(), error.to_string())),
            Some((Rejected, "packet too large (0x95)".into()))
        );
        assert!(goodbye(Goodbye::ServerShuttingDown).blame.is_none());
        assert!(goodbye(Goodbye::SessionTakenOver).error.to_string().contains("session taken over (0x8E)"));
        let unknown = End::of(&ConnectionError::MqttState(StateError::Deserialization(
            PacketError::InvalidConnectReturnCode(0xA2),
        )));
        assert_eq!(unknown.blame.map(|error| error.kind()), Some(Failed));
        let refused = End::of(&ConnectionError::ConnectionRefused(ConnectReturnCode::BadUserNamePassword));
        assert!(refused.error.to_string().contains("bad user name password"));
        assert!(!refused.is_cut);
        assert!(End::of(&ConnectionError::MqttState(StateError::ConnectionAborted)).is_cut);
    }
}
