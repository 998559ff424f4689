//! What goes over the broker: every event has the whole order in it, so that no service asks another.

use pillarbox::{EventBuilder, Metadata, OutboxEvent};
use serde::{Deserialize, Serialize};

use crate::choreography::Word;

/// The header with the saga that a message belongs to: the order's id.
const SAGA: &str = "saga-id";
/// The header with the request that a message comes from: the id of the customer's message.
const CORRELATION: &str = "correlation-id";

/// What somebody wants to buy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) customer: String,
    pub(crate) item: String,
    pub(crate) quantity: i64,
    pub(crate) cents: i64,
}

/// An event that is one of the saga's words.
pub(crate) trait Told: OutboxEvent {
    const WORD: Word;

    fn into_order(self) -> Order;
}

/// A word that a service has heard.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) word: Word,
    pub(crate) order: Order,
    pub(crate) correlation: String,
}

impl Heard {
    pub(crate) fn new<E: Told>(event: E, metadata: &Metadata) -> Self {
        // Only the customer's own message has none.
        let correlation = metadata.headers().get(CORRELATION).map_or_else(|| metadata.id().to_string(), str::to_owned);
        Self { word: E::WORD, order: event.into_order(), correlation }
    }

    /// The event that tells the others of it.
    pub(crate) fn answer(&self, word: Word) -> EventBuilder {
        event(word, &self.order, &self.correlation)
    }
}

/// A word about an order. Its key is the order's id: what one service tells of it arrives in this order, as long as nobody is
/// killed.
pub(crate) fn event(word: Word, order: &Order, correlation: &str) -> EventBuilder {
    bare(word, order.clone()).header(SAGA, order.id.as_str()).header(CORRELATION, correlation)
}

macro_rules! words {
    ($($word:ident),+ $(,)?) => {
        $(
            #[derive(Clone, Debug, Serialize, Deserialize, OutboxEvent)]
            #[outbox(aggregate = "Order", aggregate_id = 0.id, key = 0.id)]
            pub(crate) struct $word(Order);

            impl Told for $word {
                const WORD: Word = Word::$word;

                fn into_order(self) -> Order {
                    self.0
                }
            }
        )+

        fn bare(word: Word, order: Order) -> EventBuilder {
            match word {
                $(Word::$word => $word(order).to_event()),+
            }
        }
    };
}

words![
    PlaceOrder,
    OrderPlaced,
    OrderConfirmed,
    OrderTimedOut,
    StockReserved,
    StockRejected,
    PaymentTaken,
    PaymentDeclined,
    PaymentRefunded,
];
