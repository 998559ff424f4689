//! A broker that now and then does not hear that a message is dealt with, and gives it again: the moment between the work and
//! the acknowledgement is too short for the killer to hit it often.

use pillarbox::port::{BoxFuture, Gives, Received, SinkError, Source, Ticket};

/// One in so many acknowledgements is lost.
const LOST: u32 = 20;

pub(crate) struct Forgetful<S>(pub(crate) S);

impl<S: Source> Source for Forgetful<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn gives(&self) -> Gives {
        self.0.gives()
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        self.0.receive(most)
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        Box::pin(async move {
            let lost: Vec<bool> = tickets.iter().map(|_| fastrand::u32(..LOST) == 0).collect();
            let others = tickets.iter().zip(&lost).filter(|(_, is_lost)| !**is_lost);
            let others: Vec<_> = others.map(|(ticket, _)| *ticket).collect();
            let mut answers = self.0.acknowledge(&others).await.into_iter();
            let unheard = || Err(SinkError::unavailable("the acknowledgement is lost"));
            lost.iter()
                .map(|is_lost| if *is_lost { unheard() } else { answers.next().unwrap_or_else(unheard) })
                .collect()
        })
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        self.0.give_back(tickets)
    }

    fn hold<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        self.0.hold(tickets)
    }

    fn lag(&self) -> BoxFuture<'_, Result<Option<u64>, SinkError>> {
        self.0.lag()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        self.0.check()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}
