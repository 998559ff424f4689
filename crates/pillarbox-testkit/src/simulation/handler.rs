//! The handlers: they take their time, and at times they fail, panic, put off or hang.

use std::sync::Arc;

use pillarbox_core::{
    Delivery,
    domain::{Answer, HandlerError, Outcome},
};
use tokio::time::{Duration, sleep};

use super::{ledger::Pen, life::Life, weather::Sky};
use crate::proof::Line;

/// How long a handler may take: what hangs is cut off then.
pub(super) const TIMEOUT: Duration = Duration::from_millis(200);
const LONGEST: u64 = 60;

/// What an event tells of itself; its payload, in text.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) order: i64,
    /// Its key, if it takes part in the key's order. What is delayed joins the key when it is due, and holds back
    /// nothing before.
    pub(super) key: Option<String>,
}

impl Told {
    pub(super) fn text(&self) -> String {
        format!("{} {}", self.order, self.key.as_deref().unwrap_or("-"))
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        let (order, key) = text.split_once(' ')?;
        Some(Self { order: order.parse().ok()?, key: Some(key).filter(|key| *key != "-").map(Into::into) })
    }
}

/// Deals with one delivery.
pub(super) async fn handle(life: Arc<Life>, sky: Arc<Sky>, delivery: Delivery) -> Answer {
    life.runs().await;
    let text = String::from_utf8_lossy(delivery.event().payload().as_bytes()).into_owned();
    let Some(Told { order, key }) = Told::read(&text) else {
        return Err(HandlerError::msg(format!("not an event of this simulation: {text}")));
    };
    let (epoch, partition) = (delivery.fencing_token().0, delivery.record().partition.0);
    let mut running = Running { life: life.clone(), line: Line { epoch, partition, key, ..Pen::named("-", order) } };
    running.says("begin");
    let bad = sky.strikes("bad handlers", sky.weather().bad_handler).then(|| fastrand::u8(..8));
    sleep(Duration::from_millis(fastrand::u64(..LONGEST))).await;
    life.runs().await;
    match bad {
        None => {
            running.ends("end");
            Ok(Outcome::Done)
        }
        Some(0..4) => {
            running.ends("failed");
            Err(HandlerError::msg("failed by the seed"))
        }
        Some(4) => {
            running.ends("failed");
            Ok(Outcome::RetryAfter(Duration::from_millis(fastrand::u64(..100))))
        }
        Some(5 | 6) => {
            running.ends("failed");
            // Without the panic hook, which would print thousands of them.
            std::panic::resume_unwind(Box::new("panicked by the seed"))
        }
        Some(_) => std::future::pending().await,
    }
}

/// A delivery under way: what is dropped says so, unless its process is gone.
struct Running {
    life: Arc<Life>,
    line: Line,
}

impl Running {
    fn says(&mut self, what: &str) {
        if let Some(pen) = self.life.pen() {
            self.line.what = what.into();
            pen.write(self.line.clone());
        }
    }

    fn ends(&mut self, how: &str) {
        self.says(how);
        self.line.what.clear();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.line.what.is_empty() {
            self.says("dropped");
        }
    }
}
