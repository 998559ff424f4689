//! What librdkafka's and the brokers' errors mean.

use pillarbox_core::port::{SinkError, SinkErrorKind};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    types::RDKafkaConfRes,
};

/// A message's error, with what was heard last from the brokers where it says little by itself.
pub(crate) fn of_message(error: &KafkaError, heard: Option<String>) -> SinkError {
    let Some(code) = error.rdkafka_error_code() else { return SinkError::failed(error) };
    match (kind(code), heard) {
        (SinkErrorKind::Unavailable, Some(heard)) => SinkError::unavailable(format_args!("{code}: {heard}")),
        (SinkErrorKind::Unavailable, None) => SinkError::unavailable(code),
        (SinkErrorKind::Failed, _) => SinkError::failed(code),
        (SinkErrorKind::Rejected, _) => SinkError::rejected(code),
    }
}

/// An error of librdkafka's own, at whose queue the message ended: no broker was asked.
pub(crate) fn of_queue(error: &KafkaError, heard: Option<String>) -> SinkError {
    let refusal = of_message(error, heard);
    match refusal.kind() {
        SinkErrorKind::Rejected => SinkError::unfit(refusal),
        SinkErrorKind::Unavailable | SinkErrorKind::Failed => refusal,
    }
}

/// Whether the error is of all messages that travelled together, and may be the fault of one of them.
pub(crate) fn is_shared(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidRecord | Code::InvalidTimestamp)
    )
}

/// A question that was not answered.
pub(crate) fn of_check(error: &KafkaError, heard: Option<String>) -> SinkError {
    let words = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string());
    SinkError::unavailable(match heard {
        Some(heard) => format!("the brokers do not answer: {words}: {heard}"),
        None => format!("the brokers do not answer: {words}"),
    })
}

/// A producer that can't be made: no message gets through.
pub(crate) fn of_creation(error: &KafkaError) -> SinkError {
    match error {
        KafkaError::ClientConfig(..) => of_settings(error),
        error => SinkError::unavailable(format_args!("the Kafka producer can't be made: {error}")),
    }
}

/// The same, before anybody is asked: it is the settings' fault.
pub(crate) fn of_trial(error: &KafkaError) -> SinkError {
    match error {
        KafkaError::ClientConfig(..) => of_settings(error),
        error => SinkError::rejected(format_args!("the properties do not make a Kafka producer: {error}")),
    }
}

/// A setting that librdkafka does not take; without its value, which may be a password.
pub(crate) fn of_settings(error: &KafkaError) -> SinkError {
    match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, name, _) => {
            SinkError::rejected(format_args!("librdkafka knows no property {name}"))
        }
        KafkaError::ClientConfig(_, reason, name, value) => {
            let reason = if value.is_empty() { reason.clone() } else { reason.replace(&**value, "..") };
            SinkError::rejected(format_args!("the property {name} has a value that librdkafka does not take: {reason}"))
        }
        _ => SinkError::rejected("the properties can't be given to librdkafka"),
    }
}

fn kind(code: Code) -> SinkErrorKind {
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::InvalidTopic
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed
        | Code::PolicyViolation
        | Code::UnsupportedForMessageFormat => SinkErrorKind::Rejected,
        // The producer's fault or the cluster's, whatever the message.
        Code::MessageTimedOut
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::TimedOutQueue
        | Code::QueueFull
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::Fatal
        | Code::BrokerDestroy
        | Code::Resolve
        | Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::NetworkException
        | Code::BrokerNotAvailable
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::CoordinatorNotAvailable
        | Code::CoordinatorLoadInProgress
        | Code::OutOfOrderSequenceNumber
        | Code::InvalidProducerEpoch
        | Code::ProducerFenced
        | Code::UnknownProducerId
        | Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::SSL
        | Code::ClusterAuthorizationFailed => SinkErrorKind::Unavailable,
        _ => SinkErrorKind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_brokers() {
        let error = of_message(&KafkaError::MessageProduction(Code::TopicAuthorizationFailed), Some("heard".into()));
        assert_eq!(error.kind(), SinkErrorKind::Rejected);
        assert!(error.to_string().contains("Topic authorization failed"), "{error}");
        let error =
            of_message(&KafkaError::MessageProduction(Code::MessageTimedOut), Some("Connection refused".into()));
        assert_eq!(error.kind(), SinkErrorKind::Unavailable);
        assert!(error.to_string().contains("timed out") && error.to_string().contains("refused"), "{error}");
        let error = of_message(&KafkaError::MessageProduction(Code::InvalidCommitOffsetSize), None);
        assert_eq!(error.kind(), SinkErrorKind::Failed);
    }
}
