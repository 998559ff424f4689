//! What has arrived at a broker, and whether it is all and in order.

use std::time::Duration;

use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::AbortHandle,
};

use crate::{Result, moments::now};

/// The next message comes within this time, or not at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// Digits of a number at the begin of a payload.
const DIGITS: usize = 12;

/// A message that somebody has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) number: usize,
    /// By the clock of all processes.
    pub(super) at: u64,
}

/// The messages of a broker, one after another.
#[derive(Debug)]
pub(super) struct Arrivals {
    messages: UnboundedReceiver<Result<Arrival>>,
    listener: Option<AbortHandle>,
}

impl Arrivals {
    /// What comes through the sender.
    pub(super) fn channel() -> (Inbox, Self) {
        let (sender, messages) = mpsc::unbounded_channel();
        (Inbox(sender), Self { messages, listener: None })
    }

    /// What a task hands over, which ends with this.
    pub(super) fn of<F: Future<Output = Result<()>> + Send + 'static>(listen: impl FnOnce(Inbox) -> F) -> Self {
        let (inbox, mut arrivals) = Self::channel();
        let listening = listen(inbox.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = listening.await {
                // Who is not there any more does not miss it.
                let _ = inbox.0.send(Err(error));
            }
        });
        arrivals.listener = Some(task.abort_handle());
        arrivals
    }

    pub(super) async fn next(&mut self) -> Result<Arrival> {
        let next = tokio::time::timeout(PATIENCE, self.messages.recv()).await;
        next.map_err(|_| format!("no message for {PATIENCE:?}"))?.ok_or("the listener has ended")?
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

/// Where a listener puts what it gets.
#[derive(Clone, Debug)]
pub(super) struct Inbox(UnboundedSender<Result<Arrival>>);

impl Inbox {
    /// A payload, which begins with its number.
    pub(super) fn put(&self, payload: &[u8]) {
        let at = now();
        let arrival =
            number_of(payload).map(|number| Arrival { number, at }).ok_or_else(|| "a payload has no number".into());
        // Who is not there any more does not miss it.
        let _ = self.0.send(arrival);
    }
}

/// The number at the begin of a payload.
pub(super) fn number_of(payload: &[u8]) -> Option<usize> {
    std::str::from_utf8(payload.get(..DIGITS)?).ok()?.parse().ok()
}

/// Which of the events there were, and the last of each key.
#[derive(Debug)]
pub(super) struct Seen {
    there: Vec<bool>,
    missing: usize,
    last: Vec<Option<usize>>,
}

impl Seen {
    /// Events from 0 on; those whose numbers have the same rest by `keys` have the same key.
    pub(super) fn new(events: usize, keys: usize) -> Self {
        Self { there: vec![false; events], missing: events, last: vec![None; keys] }
    }

    /// Takes messages until all are there.
    pub(super) async fn all(mut self, arrivals: &mut Arrivals) -> Result<()> {
        while self.missing > 0 {
            let arrival = arrivals.next().await;
            let arrival = arrival.map_err(|error| format!("{} events have not arrived: {error}", self.missing))?;
            self.take(arrival.number)?;
        }
        // Those that came after the last one, as far as they are here.
        while let Ok(more) = arrivals.messages.try_recv() {
            self.take(more?.number)?;
        }
        Ok(())
    }

    fn take(&mut self, number: usize) -> Result<()> {
        let there = self.there.get_mut(number).ok_or_else(|| format!("event {number} was never written"))?;
        if std::mem::replace(there, true) {
            return Err(format!("event {number} has arrived twice").into());
        }
        self.missing -= 1;
        let keys = self.last.len();
        let last = &mut self.last[number % keys];
        if let Some(last) = last.filter(|last| *last > number) {
            return Err(format!("event {number} has arrived after event {last} of the same key").into());
        }
        *last = Some(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn look(numbers: &[usize]) -> Result<()> {
        let (inbox, mut arrivals) = Arrivals::channel();
        numbers.iter().for_each(|number| inbox.put(format!("{number:012}xxx").as_bytes()));
        drop(inbox);
        Seen::new(4, 2).all(&mut arrivals).await
    }

    #[tokio::test]
    async fn what_is_lost_doubled_or_out_of_order_is_an_error() {
        look(&[1, 0, 3, 2]).await.unwrap();
        for (numbers, words) in [
            (&[0, 1, 2][..], "1 events have not arrived"),
            (&[0, 1, 2, 2, 3], "event 2 has arrived twice"),
            (&[0, 1, 2, 3, 3], "event 3 has arrived twice"),
            (&[2, 1, 0, 3], "event 0 has arrived after event 2"),
            (&[0, 7], "event 7 was never written"),
        ] {
            let error = look(numbers).await.expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
