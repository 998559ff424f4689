//! From the outbox to brokers: routing, messages, configuration.
