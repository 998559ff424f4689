//! The trial: orders come, services are killed, letters are replayed, until all is over.

mod crew;
mod look;
mod mend;

use std::{
    path::PathBuf,
    pin::pin,
    time::{Duration, Instant},
};

use clap::Args;
use pillarbox::port::{Message, Sink as _};
use pillarbox_nats::NatsSink;
use pillarbox_relay::{Mode, Target, message};
use pillarbox_servers::Nats;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::{
    crew::{Crew, Ground},
    look::{Broker, Look},
    mend::Mender,
};
use crate::{
    Failure,
    choreography::Word,
    duration,
    events::{Order, event},
    plan::{Frozen, Plan, SERVICES},
    service::sink,
    verdict,
};

/// What a trial is like.
#[derive(Clone, Debug, Args)]
pub(crate) struct Trial {
    /// How many orders are placed.
    #[arg(long, default_value_t = 1_000)]
    orders: usize,
    /// How many are placed in a second.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// How often a service is killed, on the average.
    #[arg(long, value_parser = duration, default_value = "700ms")]
    kill_every: Duration,
    /// How long an order may wait for its end.
    #[arg(long, value_parser = duration, default_value = "6s")]
    timeout: Duration,
    /// What the orders and the kills follow from. A new one unless told otherwise.
    #[arg(long)]
    seed: Option<u64>,
    /// A broker that is there. Without it, the trial starts one of its own.
    #[arg(long)]
    nats: Option<String>,
    /// Where the databases and logs go, and stay. Without it, they go when all agrees.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Lets the services do again what comes again: the verdict tells what the inbox is for.
    #[arg(long)]
    without_inbox: bool,
    /// When the trial is given up.
    #[arg(long, value_parser = duration, default_value = "10m")]
    within: Duration,
}

/// Runs a trial. Whether all agrees in the end.
pub(crate) async fn run(trial: Trial) -> Result<bool, Failure> {
    let seed = trial.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let plan = Plan::new(trial.orders, seed);
    let temporary = tempfile::Builder::new().prefix("saga-").tempdir()?;
    let folder = trial.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&folder)?;
    if folder.join("order.db").exists() {
        return Err(format!("{} has the databases of another trial: give an empty folder", folder.display()).into());
    }
    let server = if trial.nats.is_none() { Some(Nats::start()?) } else { None };
    let nats = trial.nats.clone().or_else(|| server.as_ref().map(Nats::url)).unwrap_or_default();
    let stream = format!("saga-{:x}", fastrand::u64(..));
    println!("{} orders, a kill every {:?}, seed {seed}, in {}", trial.orders, trial.kill_every, folder.display());

    plan.open_shop(&folder, trial.timeout).await?;
    let ground =
        Ground { folder: folder.clone(), nats, stream, timeout: trial.timeout, without_inbox: trial.without_inbox };
    let ended = Driver::start(&trial, &plan, ground, seed).await?.run().await;
    if let Err(error) = &ended {
        println!("the trial was given up: {error}");
    }
    let agrees = verdict::tell(&folder, &plan).await? && ended.is_ok();
    if !agrees && trial.folder.is_none() {
        println!("databases and logs are in {}", temporary.keep().display());
    }
    Ok(agrees)
}

struct Driver<'a> {
    trial: &'a Trial,
    plan: &'a Plan,
    ground: Ground,
    sink: NatsSink,
    broker: Broker,
    crew: Crew,
    mender: Option<Mender>,
    dice: fastrand::Rng,
    begun: Instant,
    placed: usize,
}

impl<'a> Driver<'a> {
    async fn start(trial: &'a Trial, plan: &'a Plan, ground: Ground, seed: u64) -> Result<Self, Failure> {
        let sink = sink(&ground.nats, &ground.stream)?;
        // Makes the stream, which the services expect.
        sink.check().await?;
        let broker = Broker::connect(&ground.nats, &ground.stream).await?;
        let crew = Crew::start(ground.clone())?;
        let dice = fastrand::Rng::with_seed(seed);
        Ok(Self { trial, plan, ground, sink, broker, crew, mender: None, dice, begun: Instant::now(), placed: 0 })
    }

    /// Until all orders have ended and no letter waits; then the services are stopped.
    async fn run(mut self) -> Result<(), Failure> {
        let ended = self.go_on().await;
        println!("{}", self.line(&Look::at(&self.ground.folder).await?));
        let stopped = self.crew.stop().await;
        self.broker.clean_up().await?;
        ended.and(stopped)
    }

    async fn go_on(&mut self) -> Result<(), Failure> {
        let mut places = every(Duration::from_secs(1) / self.trial.rate);
        let mut looks = every(Duration::from_millis(250));
        let mut next_line = Instant::now();
        let requests = self.plan.orders.iter().map(|order| request(order, &self.ground.stream));
        let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
        let mut kill = pin!(sleep(pause(&mut self.dice, self.trial.kill_every)));
        loop {
            tokio::select! {
                _ = places.tick(), if self.placed < requests.len() => {
                    // What the broker has not taken is sent again, with the same id.
                    let next = &requests[self.placed..=self.placed];
                    if self.sink.send(next).await.iter().all(Result::is_ok) {
                        self.placed += 1;
                    }
                }
                () = kill.as_mut() => {
                    self.crew.check()?;
                    self.crew.kill(self.dice.usize(..SERVICES.len())).await?;
                    kill.set(sleep(pause(&mut self.dice, self.trial.kill_every)));
                }
                _ = looks.tick() => {
                    let look = Look::at(&self.ground.folder).await?;
                    if next_line <= Instant::now() {
                        println!("{}", self.line(&look));
                        next_line += Duration::from_secs(1);
                    }
                    if self.is_over(&look).await? {
                        return Ok(());
                    }
                    if self.begun.elapsed() > self.trial.within {
                        return Err(format!("it took longer than {:?}", self.trial.within).into());
                    }
                }
            }
        }
    }

    /// Replays what can be replayed. Whether there is nothing left to do.
    async fn is_over(&mut self, look: &Look) -> Result<bool, Failure> {
        if look.letters > 0 {
            self.mend(Frozen::AtFirst).await?;
        }
        if self.placed < self.trial.orders || !self.broker.is_quiet(&self.ground.folder, self.trial.orders).await? {
            return Ok(false);
        }
        // The orders of these have timed out, and their letters come too late. What is left after that is the verdict's.
        Ok(Look::at(&self.ground.folder).await?.letters == 0 || self.mend(Frozen::ToTheEnd).await? == 0)
    }

    async fn mend(&mut self, kind: Frozen) -> Result<u32, Failure> {
        if self.mender.is_none() {
            self.mender = Some(Mender::new(&self.ground).await?);
        }
        match &mut self.mender {
            Some(mender) => mender.mend(self.plan, kind).await,
            None => Ok(0),
        }
    }

    fn line(&self, look: &Look) -> String {
        let kills = self.crew.kills();
        let each: Vec<_> = SERVICES.iter().zip(kills).map(|(service, kills)| format!("{service} {kills}")).collect();
        format!(
            "{:>5.1} s  placed {:>4}  waiting {:>4}  confirmed {:>4}  cancelled {:>4}  dead letters {:>2}, replayed {:>2}  \
             kills {} ({})",
            self.begun.elapsed().as_secs_f64(),
            self.placed,
            look.waiting,
            look.confirmed,
            look.cancelled,
            look.letters,
            look.replayed,
            kills.iter().sum::<u32>(),
            each.join(", "),
        )
    }
}

/// The customer's message.
fn request(order: &Order, stream: &str) -> Result<Message, Failure> {
    let word = Word::PlaceOrder;
    let id = pillarbox::new_id();
    let event = event(word, order, &id.to_string()).id(id).build()?;
    let target = Target { topic: format!("{stream}.{word:?}").into(), key: None, headers: Vec::new() };
    Ok(message(&event, target, Mode::Binary, "/customers"))
}

fn every(span: Duration) -> tokio::time::Interval {
    let mut ticks = interval(span);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// From half of a time to half as much again.
fn pause(dice: &mut fastrand::Rng, average: Duration) -> Duration {
    average.mul_f64(0.5 + dice.f64())
}
