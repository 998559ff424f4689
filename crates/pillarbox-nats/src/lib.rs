//! A sink of Pillarbox: NATS JetStream.
