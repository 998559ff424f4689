//! A sink of Pillarbox: Kafka by an idempotent producer.
