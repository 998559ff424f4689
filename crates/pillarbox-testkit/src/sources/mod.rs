//! The exam of a source: what every adapter to a broker has to pass that a consumer receives from, on the real broker, with a
//! proxy between that breaks the connection. An adapter runs it with one line, [`sources!`](crate::sources!), for a type that
//! implements [`Place`]. Messages are sent by the project's own sink of that broker.

mod again;
mod faults;
mod incoming;
mod steps;

use std::{future::Future, time::Duration};

use pillarbox_core::port::Source;

pub use self::{
    again::{
        a_ticket_of_a_lost_connection_is_told_the_truth, acknowledgements_come_in_any_order_and_have_one_answer_each,
        what_is_acknowledged_does_not_come_again, what_is_given_back_comes_again, what_is_held_stays_where_it_is,
        what_is_not_acknowledged_comes_again_after_its_consumer_is_gone,
        what_is_not_acknowledged_comes_again_after_its_time,
        what_is_not_acknowledged_comes_again_after_the_connection_is_lost,
    },
    faults::{
        a_broker_that_does_not_answer_is_unavailable, a_receive_that_is_dropped_loses_nothing,
        a_restart_of_the_broker_loses_nothing, an_acknowledgement_without_an_answer_is_an_error,
        nobody_there_at_the_start_is_no_end,
    },
    incoming::{
        a_check_tells_what_is_there, a_message_that_is_no_cloud_event_comes_in, messages_of_a_key_come_in_order,
        no_more_come_than_were_asked_for, sources_of_one_group_share_the_messages, the_lag_counts_what_waits,
        what_was_closed_opens_again, what_was_sent_comes_in_whole,
    },
};
use crate::sinks;

const GROUP: &str = "billing";

/// More than enough for anything that is not a fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// After this time a message that was not acknowledged comes again, where a case waits for that.
pub const SOON: Duration = Duration::from_secs(2);

/// The same, where a case must not see it.
pub const LATE: Duration = Duration::from_mins(5);

/// For how long a source under examination waits for messages.
pub const WAIT: Duration = Duration::from_millis(500);

/// A place on a broker that no other test has.
pub trait Place: sinks::Place {
    /// Why the exam can't be held here, if so: a server that is not there. It is left out then, with these words.
    fn missing() -> Option<String> {
        None
    }

    /// The adapter.
    type Source: Source;

    /// A new place on a server of its own, which may be restarted.
    fn private() -> impl Future<Output = Self> + Send;

    /// Kills that server as `kill -9` does, and starts it again.
    fn restart(&mut self);

    /// A source of this group for the place's topic that reaches the broker by way of the proxy, waits for messages for
    /// [`WAIT`], gives up after [`sinks::ANSWER_WITHIN`], and has not been used. What is not acknowledged comes again after the
    /// given time, where the broker has such a time.
    fn source(&self, group: &str, again_after: Duration) -> Self::Source;

    /// A second source of the group that is there at the same time as the first, where the broker has to tell them apart.
    fn another(&self, group: &str, again_after: Duration) -> Self::Source {
        self.source(group, again_after)
    }

    /// Whether a source has its messages still after its connection was lost and made again, so that they need not come again.
    fn keeps_messages() -> bool {
        false
    }

    /// Makes sure that messages for a group are kept from now on, where the broker has to be told; not by way of the proxy.
    fn prepare(&self, group: &str) -> impl Future<Output = ()> + Send {
        let _ = group;
        async {}
    }

    /// Sends a bare payload to the topic, as a program does that knows nothing of CloudEvents; not by way of the proxy.
    fn send_plain(&self, payload: &[u8]) -> impl Future<Output = ()> + Send;
}

/// Makes a test of every case, for a type that implements [`Place`](trait@crate::sources::Place).
#[macro_export]
macro_rules! sources {
    ($place:ty) => {
        $crate::exam!(sources, $place:
            what_was_sent_comes_in_whole,
            a_message_that_is_no_cloud_event_comes_in,
            what_is_acknowledged_does_not_come_again,
            what_is_not_acknowledged_comes_again_after_the_connection_is_lost,
            what_is_not_acknowledged_comes_again_after_its_consumer_is_gone,
            what_is_not_acknowledged_comes_again_after_its_time,
            what_is_held_stays_where_it_is,
            what_is_given_back_comes_again,
            acknowledgements_come_in_any_order_and_have_one_answer_each,
            a_ticket_of_a_lost_connection_is_told_the_truth,
            messages_of_a_key_come_in_order,
            sources_of_one_group_share_the_messages,
            no_more_come_than_were_asked_for,
            a_receive_that_is_dropped_loses_nothing,
            nobody_there_at_the_start_is_no_end,
            a_broker_that_does_not_answer_is_unavailable,
            an_acknowledgement_without_an_answer_is_an_error,
            a_restart_of_the_broker_loses_nothing,
            the_lag_counts_what_waits,
            a_check_tells_what_is_there,
            what_was_closed_opens_again,
        );
    };
}
