//! From the outbox to brokers: which event goes where, as what message, and how many at once.
//!
//! | file | what it has |
//! |---|---|
//! | `rules`, `template` | which event goes to which sinks, and the topic, key and headers it gets |
//! | `message` | an event as a CloudEvents message |
//! | `outlet` | a sink as a handler of the outbox: deliveries in, batches out |
//! | `stdout` | a sink for terminals and pipes |
//! | `config` | all of it from a file, the environment and flags |
//! | `relay` | all of it, running |
//!
//! The sinks themselves are crates of their own: `pillarbox-nats`, `pillarbox-rabbitmq`, `pillarbox-redis`,
//! `pillarbox-mqtt`, `pillarbox-http`, `pillarbox-kafka`.

pub mod config;
mod message;
mod near;
mod outlet;
mod relay;
mod rules;
mod stdout;
mod template;

pub use message::{Mode, message};
pub use outlet::Outlet;
pub use relay::{Relay, check_sinks};
pub use rules::{Matches, Rule, Rules, Target, Unfit};
pub use stdout::StdoutSink;
pub use template::{Lacking, Template};
