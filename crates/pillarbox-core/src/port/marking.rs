//! Marks that several callers ask for at once.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{StoreError, StoreErrorKind};

/// A mark that somebody asks for; see [`GuardStore::take`](super::GuardStore::take).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// For whom.
    pub consumer: String,
    /// Which message is marked.
    pub message: String,
    /// Who marks it.
    pub by: String,
    /// For how long.
    pub ttl: Duration,
}

/// Gathers the marks that callers ask for while an earlier question is under way, and asks for all of them in the next one: a
/// database has one statement and one commit for many callers, on one connection. For those who write a
/// [`GuardStore`](super::GuardStore). Cheap to clone.
///
/// Questions are asked in a task of their own: a caller that is dropped takes no other's answer with it, and has asked all the
/// same.
#[derive(Clone, Default)]
pub struct Marking(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Whether a task asks.
    is_asking: bool,
}

struct Waiting {
    mark: Mark,
    answer: oneshot::Sender<Result<bool, StoreError>>,
}

/// The most marks of one question.
const MOST: usize = 500;

impl Marking {
    /// The answer for one mark. `ask` is given the marks of a question, of which no two are for the same message of the same
    /// consumer, and answers in their order. An error is everyone's.
    pub async fn take<F>(
        &self,
        mark: Mark,
        ask: impl Fn(Arc<[Mark]>) -> F + Send + Sync + 'static,
    ) -> Result<bool, StoreError>
    where
        F: Future<Output = Result<Vec<bool>, StoreError>> + Send + 'static,
    {
        let (answer, told) = oneshot::channel();
        let is_first = {
            let mut state = self.0.lock();
            state.waiting.push(Waiting { mark, answer });
            !std::mem::replace(&mut state.is_asking, true)
        };
        if is_first {
            let asking = Asking { marking: self.clone(), is_over: false };
            tokio::spawn(asking.run(ask));
        }
        told.await.unwrap_or_else(|_| {
            let words = "the task that was to mark the message has ended: its runtime is gone";
            Err(StoreError::new(StoreErrorKind::OutcomeUnknown, words))
        })
    }

    /// What is asked next; nothing ends the task.
    fn next(&self) -> Vec<Waiting> {
        let mut state = self.0.lock();
        let all = std::mem::take(&mut state.waiting);
        let mut names = HashSet::new();
        let is_next = |waiting: &Waiting| {
            names.len() < MOST && names.insert((waiting.mark.consumer.clone(), waiting.mark.message.clone()))
        };
        // A second one for the same message is the next question's: by then the first has its mark.
        let (next, later) = all.into_iter().partition(is_next);
        state.waiting = later;
        state.is_asking = !next.is_empty();
        next
    }
}

/// A task that asks. If it is cut off, those that wait are told so, and the next caller begins anew.
struct Asking {
    marking: Marking,
    is_over: bool,
}

impl Asking {
    async fn run<F>(mut self, ask: impl Fn(Arc<[Mark]>) -> F)
    where
        F: Future<Output = Result<Vec<bool>, StoreError>>,
    {
        loop {
            let next = self.marking.next();
            if next.is_empty() {
                self.is_over = true;
                return;
            }
            let (marks, waiting): (Vec<_>, Vec<_>) = next.into_iter().map(|next| (next.mark, next.answer)).unzip();
            let told = ask(marks.into()).await;
            for (place, answer) in waiting.into_iter().enumerate() {
                // Who is not there any more does not miss it.
                let _ = answer.send(match &told {
                    Ok(answers) => answers.get(place).copied().ok_or_else(|| {
                        StoreError::new(StoreErrorKind::Rejected, "the store has answered for too few messages")
                    }),
                    Err(error) => Err(StoreError::new(error.kind(), error.to_string())),
                });
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.is_over {
            // Another task may ask by now.
            return;
        }
        let mut state = self.marking.0.lock();
        state.is_asking = false;
        state.waiting.clear();
    }
}

impl fmt::Debug for Marking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Marking").field("waiting", &state.waiting.len()).field("is_asking", &state.is_asking).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::{join, join_all};
    use tokio::sync::Semaphore;

    use super::*;

    fn mark(message: &str) -> Mark {
        Mark { consumer: "c".into(), message: message.into(), by: "me".into(), ttl: Duration::from_secs(1) }
    }

    /// A store that answers when it is let, and counts questions.
    #[derive(Default)]
    struct Store {
        marked: Mutex<HashSet<String>>,
        asked: AtomicUsize,
    }

    impl Store {
        fn ask(&self, marks: &[Mark]) -> Vec<bool> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            marks.iter().map(|mark| self.marked.lock().insert(mark.message.clone())).collect()
        }
    }

    #[tokio::test]
    async fn callers_at_once_share_a_question_and_each_message_is_marked_once() {
        let (marking, store, may) = (Marking::default(), Arc::new(Store::default()), Arc::new(Semaphore::new(0)));
        let take = |message: String| {
            let (store, may) = (store.clone(), may.clone());
            marking.take(mark(&message), move |marks| {
                let (store, may) = (store.clone(), may.clone());
                async move {
                    may.acquire().await.map_err(|_| StoreError::new(StoreErrorKind::Rejected, "closed"))?.forget();
                    Ok(store.ask(&marks))
                }
            })
        };
        // Each of them is asked for three times.
        let all = join_all((0..60).map(|number| take(format!("m-{}", number % 20))));
        let release = async {
            for _ in 0..60 {
                may.add_permits(1);
                tokio::task::yield_now().await;
            }
        };
        let (answers, ()) = join(all, release).await;
        let firsts = answers.into_iter().filter(|answer| matches!(answer, Ok(true))).count();
        assert_eq!(firsts, 20);
        assert!(store.asked.load(Ordering::SeqCst) <= 4, "one, and what was gathered meanwhile in three");
    }

    #[tokio::test]
    async fn an_error_is_everyones_and_the_next_call_asks_anew() {
        let marking = Marking::default();
        let fails = |_: Arc<[Mark]>| async { Err(StoreError::new(StoreErrorKind::Unavailable, "down")) };
        let (one, other) = join(marking.take(mark("a"), fails), marking.take(mark("b"), fails)).await;
        for answer in [one, other] {
            assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Unavailable);
        }
        let works = |marks: Arc<[Mark]>| async move { Ok(vec![true; marks.len()]) };
        assert!(marking.take(mark("a"), works).await.unwrap());
    }

    #[tokio::test]
    async fn a_caller_that_is_dropped_takes_no_other_with_it() {
        let (marking, may) = (Marking::default(), Arc::new(Semaphore::new(0)));
        let take = |message: &str| {
            let may = may.clone();
            marking.take(mark(message), move |marks| {
                let may = may.clone();
                async move {
                    may.acquire().await.map_err(|_| StoreError::new(StoreErrorKind::Rejected, "closed"))?.forget();
                    Ok(vec![true; marks.len()])
                }
            })
        };
        let mut dropped = Box::pin(take("a"));
        assert!(futures_util::poll!(&mut dropped).is_pending());
        let mut stays = Box::pin(take("b"));
        assert!(futures_util::poll!(&mut stays).is_pending());
        drop(dropped);
        may.add_permits(2);
        assert!(stays.await.unwrap());
    }

    #[test]
    fn the_end_of_a_runtime_is_told_and_is_no_end_for_others() {
        let marking = Marking::default();
        let first = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let never = |_: Arc<[Mark]>| std::future::pending();
        let mut waits = Box::pin(marking.take(mark("a"), never));
        first.block_on(async { assert!(futures_util::poll!(&mut waits).is_pending()) });
        first.block_on(tokio::task::yield_now());
        drop(first);
        let second = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let told = second.block_on(waits);
        assert_eq!(told.unwrap_err().kind(), StoreErrorKind::OutcomeUnknown);
        let works = |marks: Arc<[Mark]>| async move { Ok(vec![true; marks.len()]) };
        assert!(second.block_on(marking.take(mark("a"), works)).unwrap());
    }
}
