//! What the engine needs from the outside, split by who calls it.
//!
//! | port | caller | for |
//! |---|---|---|
//! | [`WriteStore`], [`TransactStore`] | writer | inserting events in a transaction |
//! | [`OwnStore`] | ownership | the node's lease, and the partitions it owns |
//! | [`ReadStore`] | reader, settler | reading events, settling them behind the fence |
//! | [`SettleStore`] | workers | settling events in the transaction of their handlers' work |
//! | [`UpkeepStore`] | upkeep | migrations, purging |
//! | [`AdminStore`] | operators | dead events, counts |
//! | [`ActionStore`] | operators | the record of what they did, the edit of a payload |
//! | [`WakeStore`] | reader | news from other processes |
//! | [`Sink`] | relay | sending messages to a broker |
//! | [`Source`] | consumer | receiving messages from a broker |
//! | [`GuardStore`] | consumer | marks of messages that are being dealt with |
//! | [`InboxStore`], [`InboxUpkeep`] | consumer | messages that were dealt with, in the transaction of the work |
//! | [`LetterStore`] | consumer, operators | messages that were given up |
//! | [`Tracer`] | writer, workers | the trace that an event belongs to |
//! | [`Clock`] | writer | the host's time, for `occurred_at` alone |
//!
//! A database adapter implements the first eight; the engine sees them as one [`Store`]. The exam that every
//! adapter passes is `pillarbox_testkit::conformance`.

mod action;
mod admin;
mod clock;
mod deeds;
mod error;
mod guard;
mod inbox;
mod letters;
mod marking;
mod own;
mod policy;
mod read;
mod settle;
mod sink;
mod source;
pub mod span;
mod tickets;
mod trace;
mod upkeep;
mod wake;
mod write;

pub use futures_util::future::BoxFuture;

pub use action::{Action, ActionKind, ActionQuery, ActionStore, Actions, details_of_edit, payload_before};
pub use admin::{Actor, AdminStore, Fleet, Found, Listing, NodeStatus, Query, Stats};
pub use clock::{Clock, SystemClock};
pub use deeds::{Acted, Deed, DeedPlace, DeedQuery, DeedStore, Deeds};
pub use error::{StoreError, StoreErrorKind};
pub use guard::{GuardStore, NAME_LIMIT};
pub use inbox::{InboxStore, InboxUpkeep};
pub use letters::{Claim, Letter, LetterAction, LetterId, LetterPlace, LetterQuery, LetterStatus, LetterStore};
pub use marking::{Mark, Marking};
pub use own::{Joining, NodeView, OwnStore, Released, Renewal, Taken};
pub use policy::{BackoffSetting, CircuitSettings, RetrySettings};
pub use read::{
    Batch, Candidate, Change, Due, Hold, HoldChange, HoldKind, Page, Pick, Position, ReadStore, Recall, Row, Scan,
    Settled, Settlement,
};
pub use settle::SettleStore;
pub use sink::{Abilities, Confirms, Message, Pace, Sent, Sink, SinkError, SinkErrorKind};
pub use source::{Gives, Incoming, Received, Source, Ticket};
pub use tickets::Tickets;
pub use trace::Tracer;
pub use upkeep::{PurgeCursor, PurgeRequest, PurgeScope, Purged, UpkeepStore};
pub use wake::WakeStore;
pub use write::{NewKey, NewRow, TransactStore, WriteStore};

/// Everything the engine asks of a database, but for the writing, which is generic over the driver.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store of an outbox",
    note = "open one by its URL, as in `SqliteStore::open(\"shop.db\")`, `PostgresStore::open(url)` or `AnyStore::open(url)`",
    note = "or on a pool of your own: `PostgresStore::from_pool(pool)`"
)]
pub trait Store: OwnStore + ReadStore + UpkeepStore + AdminStore + ActionStore + WakeStore + 'static {}

impl<T: OwnStore + ReadStore + UpkeepStore + AdminStore + ActionStore + WakeStore + 'static> Store for T {}
