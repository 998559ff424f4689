//! The macros of Pillarbox. Use them through the crate `pillarbox`, which has their documentation beside the traits.
//!
//! | file | what it does |
//! |---|---|
//! | `event` | `derive(OutboxEvent)`: what is generated |
//! | `attribute` | `#[outbox(...)]`: what may be said, and what is told to those who say something else |
//! | `place` | `order_id`, `customer.id`, `key()`: where a value comes from |
//! | `handlers` | `#[handlers]` on an `impl` |
//! | `retry` | `#[retry(...)]` on a method |

mod attribute;
mod event;
mod handlers;
mod place;
mod retry;

use proc_macro::TokenStream;
use syn::{DeriveInput, ItemImpl, parse_macro_input};

/// Makes a type stand for a kind of event, or an enum for one kind a variant.
///
/// ```text
/// #[derive(Serialize, Deserialize, OutboxEvent)]
/// #[outbox(aggregate = "Order", aggregate_id = order_id, key = order_id, context(channel = sold.channel))]
/// struct OrderPlaced {
///     order_id: String,
///     sold: Sold,
/// }
/// ```
///
/// | `#[outbox(...)]` | what it sets | default |
/// |---|---|---|
/// | `type = "OrderPlaced"` | the event type | the name of the type, or of the variant |
/// | `aggregate = "Order"` | the aggregate type | none |
/// | `aggregate_id = order_id` | which aggregate | none |
/// | `key = order_id` | the ordering key | none: no order |
/// | `tenant = customer.tenant` | the tenant | none |
/// | `context(user = user_id, ...)` | entries of the context | none |
/// | `version = 2` | the version of the schema; from 2 on it travels in a header | 1 |
/// | `version_in = "type"` | the version travels in the event type: `OrderPlaced.v2` | `"header"` |
/// | `upcast = from_old` | a function from `Former<'_>` to a `Result` of the type: reads former versions | they are refused |
/// | `codec = MessagePack` | the format of this event, whatever the outbox's is | the outbox's |
/// | `protobuf` | the type is a `prost::Message`, and is written as one | |
/// | `crate = path` | where to find Pillarbox | `::pillarbox` |
///
/// A value comes from a field (`order_id`), a field of a field (`customer.id`), a field by number (`0`, `0.id`) or a
/// method (`key()`). It is anything with a `Display`, or an `Option` of it.
///
/// On an enum, what is said at the variant comes before what is said at the enum.
#[proc_macro_derive(OutboxEvent, attributes(outbox))]
pub fn derive_outbox_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    event::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes methods handlers and fallbacks: `.handlers(Shop { ... })` then registers them all.
///
/// ```text
/// #[handlers]
/// impl Shop {
///     #[handler]
///     #[retry(exponential = "200ms", max_attempts = 5)]
///     async fn on_placed(&self, placed: OrderPlaced, metadata: Metadata) -> Result<(), ShopError> { ... }
///
///     #[handler(id = "mail", timeout = "5s")]
///     async fn mail(&self, placed: OrderPlaced) -> Result<(), MailError> { ... }
///
///     #[fallback]
///     async fn give_up(&self, placed: OrderPlaced, failed: Failed) { ... }
/// }
/// ```
///
/// | attribute | what it does |
/// |---|---|
/// | `#[handler]` | takes the event that the method's argument is, alone or with `Metadata` |
/// | `#[handler(id = "...", timeout = "5s")]` | names it, limits it. By default the path of the method is its name |
/// | `#[handler(destination = "...")]` | names what it needs and may be down: its circuit |
/// | `#[fallback]` | runs when a handler of this type has failed for good; alone or with `Failed` |
/// | `#[fallback(of = on_placed)]` | the same, for one handler of this `impl` |
/// | `#[retry(fixed = "1s")]` | also `linear`, `exponential` (with `multiplier`), `never`; with `max_delay`, `max_attempts`, `jitter`, `on(Error)`, `never_on(Error)` |
/// | `#[retry(policy = some_expression)]` | any `RetryPolicy` |
#[proc_macro_attribute]
pub fn handlers(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as ItemImpl);
    handlers::expand(attribute.into(), item).unwrap_or_else(syn::Error::into_compile_error).into()
}
