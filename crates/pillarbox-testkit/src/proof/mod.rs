//! The proof: what was committed and what was delivered, each written down by those who did it, and a checker that reads
//! both.
//!
//! The outbox is never asked about itself. Writers, handlers, stores and whoever causes the faults write [`Line`]s;
//! the application's own table says what is committed. [`check`] then says what is wrong, and why what came twice did.
//!
//! | written by | words |
//! |---|---|
//! | writers | `committed`, `rolled-back`, `unknown`, `refused` |
//! | handlers | `begin`, and then `end`, `failed`, `panicked` or `dropped`, before that `hung`; a handler that dies with its process says nothing more |
//! | a [`Witness`] of the store | `took`, `lapsed`, `settled` and `renewed` (`order` is when the call began) |
//! | whoever causes the faults | `killed`, `paused`, `resumed`, `left`, `away` and then `restarted`, `cut`, `slow` |
//! | whoever starts the processes | `broke`: one that should have gone on, or stopped in order |

mod checker;
mod layer;
mod line;
mod pause;
#[cfg(test)]
mod tests;
mod witness;

pub use checker::{Cause, Report, Story, Violation, check};
pub(crate) use layer::Answer;
pub use layer::{Layer, Layered};
pub use line::{Line, Order};
pub use witness::{Witness, Witnessed};
