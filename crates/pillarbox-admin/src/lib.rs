//! The operators' API of an outbox: an axum router to nest in one's own service. The command `pillarbox admin` serves
//! the same.
//!
//! | path | what it does |
//! |---|---|
//! | `/events`, `/events/count`, `/events/{id}` | the outbox's events: list with filters and pages, count, show |
//! | `/events/{id}/replay`, `/skip`, `/payload`, `DELETE /events/{id}` | act on a dead one: replay, let its key go on, edit, discard |
//! | `/events/replay`, `/events/discard` | act on many, with a rate and a dry run |
//! | `/dlq`, `/dlq/count`, `/dlq/{id}`, `/dlq/{id}/replay`, `/payload` | consumers' dead letters |
//! | `/dlq/replay`, `/dlq/discard` | act on many of them |
//! | `/dead`, `/dead/count` | both in one list, with their origin |
//! | `/actions` | what was done, by whom, when and why |
//! | `/stats`, `/fleet` | how the outbox stands, and who delivers |
//! | `/openapi.json`, `/docs` | the document, and a page to try it |
//!
//! Who may come in is asked for first ([`Access`]); what some must not see is said by [`Redaction`]; how much may be
//! asked, by [`Limits`]. Errors are problem documents (RFC 9457).

mod access;
mod actions;
mod admin;
mod bulk;
mod call;
mod dead;
mod events;
mod filter;
mod letters;
mod limits;
mod openapi;
mod page;
mod path;
mod problem;
#[cfg(feature = "inbox")]
mod queue;
mod redact;
mod router;
mod view;

pub use access::{Access, Identity, Role, TokenError, Tokens};
pub use admin::Admin;
pub use letters::{Asked, LetterError, Letters};
pub use limits::Limits;
pub use path::{JsonPath, PathError};
pub use redact::{REDACTED, Redaction};
