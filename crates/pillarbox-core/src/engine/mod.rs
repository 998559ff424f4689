//! What makes events move.
//!
//! ```text
//!  writer ──(commit)──> hot queue ─┐
//!                                  ├─> workers ──> outcomes ──> settler ──> store
//!  reader ──(page)────> cold queue ┘        │
//!     ▲                    ▲                └─> lanes: the next event of the key
//!     └── ownership: which partitions, until when
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `builder`, `settings` | the four presets and every setting |
//! | `outbox`, `transaction`, `dead` | what a user holds in hand |
//! | `writer`, `hook`, `context` | into the caller's transaction, and what is announced at its end |
//! | `ownership` | the node's lease and its partitions |
//! | `reader` | finds what is due |
//! | `scout` | sees what comes before an event that is being written |
//! | `flight` | the node's memory: what is in flight, lanes, queues |
//! | `dispatcher`, `calling`, `handler`, `interceptor` | runs the handlers |
//! | `trace` | the spans around both ends |
//! | `work` | the transactions of transactional handlers |
//! | `settler` | outcomes to the table, in batches, behind the fence |
//! | `upkeep` | purge and gauges |
//! | `node`, `watch` | starts and stops the tasks; begins them again after a panic |
//! | `apart` | the thread of the lease |
//! | `by_hand` | the same without tasks, for tests |
//! | `calls` | handlers without an outbox, for consumers of a broker |
//! | `bus` | events for listeners in the process, stored and not |
//!
//! Each file that takes part in an event's way says at its top what happens when the process dies between
//! two of its steps.

mod apart;
mod backoff;
mod builder;
mod bulk;
mod bus;
mod by_hand;
mod calling;
mod calls;
mod context;
mod dead;
mod dedup;
mod dispatcher;
mod error;
mod flight;
mod handler;
mod hook;
mod ids;
mod interceptor;
mod node;
mod outbox;
mod ownership;
mod reader;
mod scout;
mod settings;
mod settler;
mod shared;
mod trace;
mod transaction;
mod upkeep;
mod watch;
mod work;
mod writer;

pub use builder::{Builder, mode};
pub use bulk::{Bulk, BulkDone};
pub use bus::{Bus, BusEvent, PublishError};
#[doc(hidden)]
pub use by_hand::ByHand;
pub use calls::{Called, Calls, CallsBuilder, Horizon, Takes, Worked};
pub use context::{Context, ContextProvider};
pub use dead::{Dead, EventRef};
pub use dedup::Duplicate;
pub use dispatcher::Report;
pub use error::{OutboxError, WriteError};
pub use handler::{
    Answers, Batch, Batched, Configured, Each, EventBatchHandler, EventFallback, EventHandler, EventInTx, Failed,
    Fallback, Handle, Handler, HandlerExt, HandlerSet, Handlers, InTx, IntoAnswers, IntoHandlers, IntoInTx,
    IntoRegistration, Metadata, Reaches, Registration, Set, batch, handler, in_tx,
};
pub use hook::{NoHook, WriterHook};
pub use ids::new_id;
pub use interceptor::Interceptor;
pub use outbox::Outbox;
pub use settings::{Heartbeat, OnDeadHead, OnSuccess, PurgeOptions};
pub use transaction::{Receipt, Transaction};
pub use work::{Work, Working};
pub use writer::IntoEvent;
