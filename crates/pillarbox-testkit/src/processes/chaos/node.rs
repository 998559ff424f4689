//! One of the processes: a node that writes, with handlers that fail, hang and panic at random.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pillarbox_core::{Delivery, Outbox, RetryPolicy, port::TransactStore};
use serde_json::{Value, json};

use super::super::{
    Application, Failure, Pen, Task,
    child::{ROUTE, in_full},
    now,
    site::Connection,
};
use crate::proof::{Layered, Witness, Witnessed};

const KEYS: u64 = 1_000;

impl Task {
    /// Writes and delivers until the word `stop-NAME`; writes no more from the word `stop-writing` on.
    pub(in super::super) async fn storm<A: Application>(self: Arc<Self>) {
        let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(self.number("seed"))));
        let stop = format!("stop-{}", self.text("name"));
        let outbox = loop {
            match self.clone().start::<A>(random.clone()).await {
                Ok(outbox) => break outbox,
                // The server may be down just now.
                Err(error) => eprintln!("not started: {}", in_full(&*error)),
            }
            if self.said(&stop) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        while !self.said(&stop) && !self.said("stop-writing") {
            let draw = |below| draw(&random, below);
            if let Err(error) = self.business::<A, _>(&outbox, draw).await {
                eprintln!("refused: {}", in_full(&*error));
                self.pen().word("refused", "-", 0);
            }
            tokio::time::sleep(Duration::from_millis(draw(15))).await;
        }
        self.pen().word("wrote", "-", 0);
        self.wait_for(&stop).await;
        outbox.shutdown().await;
        self.pen().word("left", "-", 0);
    }

    async fn start<A: Application>(
        self: Arc<Self>,
        random: Arc<Mutex<fastrand::Rng>>,
    ) -> Result<Outbox<impl TransactStore<Connection = Connection<A>>>, Failure> {
        let beat = Duration::from_millis(500);
        let witness = self.clone();
        let pen = move |seen| witness.pen().witnessed(seen);
        let store = Layered::new(A::open(self.text("url"), &self).await?, Witness::new(now, pen));
        let task = self.clone();
        let builder = Outbox::multi_node(store)
            .heartbeat(beat)
            .rebalance_every(beat)
            .stale_after(self.millis("lease").unwrap_or(Duration::from_secs(3)))
            .node_name(self.text("name"))
            .route(ROUTE, move |delivery: Delivery| {
                let (task, random) = (task.clone(), random.clone());
                async move { task.serve(delivery, &random).await }
            })
            .handler_timeout(Duration::from_millis(400))
            // Nothing is ever given up.
            .retry(RetryPolicy::fixed(Duration::from_millis(20)).max_attempts(1_000))
            .max_starts(1_000)
            .drain_timeout(Duration::from_secs(2));
        Ok(builder.start().await?)
    }

    /// A delivery: most succeed after a moment, some don't. What has succeeded is on the disk before it is answered.
    async fn serve(&self, delivery: Delivery, random: &Mutex<fastrand::Rng>) -> Result<(), io::Error> {
        let order: Value = delivery.event().payload().to()?;
        let number = order["number"].as_i64().unwrap();
        self.pen().delivery("begin", &delivery, number);
        let mut running = Running { task: self, delivery: &delivery, number, ended: false };
        match draw(random, 1_000) {
            0..15 => {
                running.end("failed");
                return Err(io::Error::other("the handler fails at random"));
            }
            15..25 => {
                running.end("panicked");
                // A panic without a word in the log: it is meant.
                std::panic::resume_unwind(Box::new("the handler panics at random"));
            }
            25..28 => {
                self.pen().delivery("hung", &delivery, number);
                std::future::pending::<()>().await;
            }
            more => tokio::time::sleep(Duration::from_millis(more % 6)).await,
        }
        // Without a pause: whoever is cut off here has not written it.
        tokio::task::block_in_place(|| {
            running.end("end");
            self.pen().to_disk();
        });
        Ok(())
    }

    /// A transaction of the application: one order or a few, some rolled back, some committed late.
    async fn business<A: Application, S: TransactStore<Connection = Connection<A>>>(
        &self,
        outbox: &Outbox<S>,
        draw: impl Fn(u64) -> u64,
    ) -> Result<(), Failure> {
        let mut tx = outbox.begin().await?;
        let mut written = Vec::new();
        // By rising keys: two transactions must not wait for each other.
        let mut keys: Vec<_> = (0..[1, 1, 1, 1, 3][usize::try_from(draw(5))?]).map(|_| draw(KEYS * 3 / 2)).collect();
        keys.sort_unstable();
        for key in keys {
            let key = (key < KEYS).then(|| format!("k{key:03}"));
            written.push(self.write_order::<A, S>(&mut tx, json!({ "key": key })).await?);
        }
        match draw(100) {
            0..5 => {
                tx.rollback().await?;
                written.iter().for_each(|(id, number)| self.pen().word("rolled-back", id, *number));
                return Ok(());
            }
            5..8 => {
                self.pen().word("late", "-", 0);
                tokio::time::sleep(Duration::from_millis(draw(700))).await;
            }
            _ => {}
        }
        let word = match tx.commit().await {
            Ok(()) => "committed",
            Err(error) if error.is_outcome_unknown() => "unknown",
            Err(error) => return Err(error.into()),
        };
        written.iter().for_each(|(id, number)| self.pen().word(word, id, *number));
        Ok(())
    }
}

/// A handler at work; one that is dropped says so.
struct Running<'a> {
    task: &'a Task,
    delivery: &'a Delivery,
    number: i64,
    ended: bool,
}

impl Running<'_> {
    fn end(&mut self, what: &str) {
        self.ended = true;
        self.task.pen().delivery(what, self.delivery, self.number);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.end("dropped");
        }
    }
}

impl Pen {
    fn witnessed(&self, seen: Witnessed) {
        match seen {
            Witnessed::Took(partition, epoch) => self.partition("took", partition, epoch, 0),
            Witnessed::Settled(partition, epoch, begun) => {
                self.partition("settled", partition, epoch, i64::try_from(begun).unwrap_or(i64::MAX));
            }
            Witnessed::Renewed(begun) => self.word("renewed", "-", i64::try_from(begun).unwrap_or(i64::MAX)),
            Witnessed::Lapsed => self.word("lapsed", "-", 0),
            Witnessed::Expelled(node) => self.of_another("lapsed", node.as_str()),
        }
    }
}

fn draw(random: &Mutex<fastrand::Rng>, below: u64) -> u64 {
    random.lock().unwrap_or_else(PoisonError::into_inner).u64(..below)
}
