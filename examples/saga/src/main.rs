//! A saga over three services, and somebody who kills them: `cargo run -p saga`.
//!
//! Order, payment and inventory are processes with a database each, and NATS JetStream between them. What one does and what it
//! tells the others is one transaction (outbox); what it hears it does once (inbox); what it can't do waits for a person (dead
//! letters). The driver places 1,000 orders, kills a service every moment, thaws frozen accounts and replays what failed
//! because of them, and in the end counts money, stock and orders in the three files, by plain SQL. It ends with code 1 unless
//! they agree.
//!
//! | file | what it does |
//! |---|---|
//! | `choreography` | who does what when he hears what: pure, and tested in all orders |
//! | `events` | what goes over the broker |
//! | `service` | what the services have in common: outbox, inbox, dead letters |
//! | `forgetful` | a broker that loses acknowledgements |
//! | `orders`, `inventory`, `payments` | the services |
//! | `driver` | the customer, the killer and the person who mends |
//! | `plan` | who orders what, and what there is at the beginning |
//! | `verdict` | the count at the end |

mod choreography;
mod driver;
mod events;
mod forgetful;
mod inventory;
mod orders;
mod payments;
mod plan;
mod service;
mod verdict;

use std::{error::Error, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use driver::Trial;
use plan::Plan;
use service::Place;
use tracing_subscriber::EnvFilter;

type Failure = Box<dyn Error + Send + Sync>;

/// Places orders with three services, kills them at random, and counts in the end.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    trial: Trial,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The order service. Ends with its standard input, as all services do.
    Order(Place),
    /// The inventory.
    Inventory(Place),
    /// The payment service.
    Payment(Place),
    /// Counts again what a trial has left in its folder.
    Verdict {
        /// Where the three databases are.
        #[arg(long)]
        folder: PathBuf,
        /// How many orders the trial had.
        #[arg(long)]
        orders: usize,
        /// The trial's seed.
        #[arg(long)]
        seed: u64,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { role, trial } = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let agrees = match role {
        None => driver::run(trial).await,
        Some(Role::Order(place)) => orders::run(place).await.map(|()| true),
        Some(Role::Inventory(place)) => inventory::run(place).await.map(|()| true),
        Some(Role::Payment(place)) => payments::run(place).await.map(|()| true),
        Some(Role::Verdict { folder, orders, seed }) => verdict::tell(&folder, &Plan::new(orders, seed)).await,
    };
    match agrees {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("saga: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads a time such as `300ms`, `6s` or `5m`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().map_err(|_| wrong(text))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err(wrong(text)),
    }
}

fn wrong(text: &str) -> String {
    format!("{text:?} is no time: write 300ms, 6s or 5m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(duration("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
        for text in ["5", "s", "", "5 s", "-1s", "1h"] {
            assert!(duration(text).unwrap_err().contains("300ms"), "{text}");
        }
    }
}
