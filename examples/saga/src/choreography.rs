//! Who does what when he hears what: the saga, without a database and without a broker.
//!
//! ```text
//!              PlaceOrder      OrderPlaced               StockReserved
//!  customer ──────────────> order ────────> inventory ──────────────> payment
//!                            ▲ ▲ ▲             │ StockRejected           │ │
//!                            │ │ └─────────────┘                         │ │
//!                            │ └────────── PaymentTaken ─────────────────┘ │    then OrderConfirmed: inventory ships
//!                            └──────────── PaymentDeclined ────────────────┘    inventory hears it too, and releases
//!
//!  order, when it has waited too long: OrderTimedOut ──> inventory releases, payment refunds (PaymentRefunded)
//! ```
//!
//! A word is heard once, since inboxes drop what comes again. But words may overtake each other: what was in the hands of a
//! process that was killed comes again later, behind what was told after it. So a service that hears of the end of an order
//! before it has heard of its beginning remembers that (`Void`), and does nothing when the beginning comes. The test
//! below goes through all orders of all words.
//!
//! Money and stock go back by [`Word::OrderTimedOut`] alone, which is told in the transaction that cancels the order: when a
//! [`Word::PaymentTaken`] comes after it, the refund is on its way already, and the order service does nothing.

use std::fmt;

/// What services tell each other, and what the customer tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Word {
    PlaceOrder,
    OrderPlaced,
    OrderConfirmed,
    OrderTimedOut,
    StockReserved,
    StockRejected,
    PaymentTaken,
    PaymentDeclined,
    PaymentRefunded,
}

/// An order, to the order service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Order {
    Placed,
    Confirmed,
    Cancelled(Why),
}

/// Why an order is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Why {
    OutOfStock,
    Declined,
    /// Nobody had paid yet.
    TimedOut,
    /// It timed out, and somebody had paid: he has his money back.
    Refunded,
}

/// An order, to the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stock {
    Reserved,
    Rejected,
    Released,
    Shipped,
    /// It ended before it was heard of.
    Void,
}

/// An order, to the payment service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Payment {
    Charged,
    Declined,
    Refunded,
    /// It ended before it was heard of.
    Void,
}

/// What an order is from now on, and what the others are told.
pub(crate) type Step<S> = Result<(S, Option<Word>), Contradiction>;

/// A word that can't be heard in this state: something was lost, or came twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction(String);

impl Contradiction {
    fn of(state: &impl fmt::Debug, heard: Word) -> Self {
        Self(format!("{heard:?} can't be, with the order as {state:?}"))
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Contradiction {}

/// The order service. Its timeout detector asks with [`Word::OrderTimedOut`].
pub(crate) fn order(state: Option<Order>, heard: Word) -> Step<Order> {
    use Order::{Cancelled, Confirmed, Placed};
    Ok(match (state, heard) {
        (None, Word::PlaceOrder) => (Placed, Some(Word::OrderPlaced)),
        (Some(Placed), Word::PaymentTaken) => (Confirmed, Some(Word::OrderConfirmed)),
        (Some(Placed), Word::StockRejected) => (Cancelled(Why::OutOfStock), None),
        (Some(Placed), Word::PaymentDeclined) => (Cancelled(Why::Declined), None),
        (Some(Placed), Word::OrderTimedOut) => (Cancelled(Why::TimedOut), Some(Word::OrderTimedOut)),
        // The detector was late.
        (Some(ended), Word::OrderTimedOut) => (ended, None),
        // These were late.
        (Some(Cancelled(Why::TimedOut)), Word::StockRejected | Word::PaymentDeclined) => {
            (Cancelled(Why::TimedOut), None)
        }
        (Some(Cancelled(why @ (Why::TimedOut | Why::Refunded))), Word::PaymentTaken) => (Cancelled(why), None),
        (Some(Cancelled(Why::TimedOut)), Word::PaymentRefunded) => (Cancelled(Why::Refunded), None),
        (state, heard) => return Err(Contradiction::of(&state, heard)),
    })
}

/// The inventory.
pub(crate) fn stock(state: Option<Stock>, heard: Word, in_stock: bool) -> Step<Stock> {
    use Stock::{Rejected, Released, Reserved, Shipped, Void};
    Ok(match (state, heard) {
        (None, Word::OrderPlaced) if in_stock => (Reserved, Some(Word::StockReserved)),
        (None, Word::OrderPlaced) => (Rejected, Some(Word::StockRejected)),
        (Some(Reserved), Word::OrderConfirmed) => (Shipped, None),
        // Both come when the order times out while the payment is declined.
        (Some(Reserved | Released), Word::PaymentDeclined | Word::OrderTimedOut) => (Released, None),
        (Some(Rejected), Word::OrderTimedOut) => (Rejected, None),
        (None, Word::OrderTimedOut) | (Some(Void), Word::OrderPlaced) => (Void, None),
        (state, heard) => return Err(Contradiction::of(&state, heard)),
    })
}

/// The payment service.
pub(crate) fn payment(state: Option<Payment>, heard: Word, enough: bool) -> Step<Payment> {
    use Payment::{Charged, Declined, Refunded, Void};
    Ok(match (state, heard) {
        (None, Word::StockReserved) if enough => (Charged, Some(Word::PaymentTaken)),
        (None, Word::StockReserved) => (Declined, Some(Word::PaymentDeclined)),
        (Some(Charged), Word::OrderTimedOut) => (Refunded, Some(Word::PaymentRefunded)),
        (Some(Declined), Word::OrderTimedOut) => (Declined, None),
        (None, Word::OrderTimedOut) | (Some(Void), Word::StockReserved) => (Void, None),
        (state, heard) => return Err(Contradiction::of(&state, heard)),
    })
}

impl Order {
    /// As it stands in the table: the state, and the reason of the end.
    pub(crate) fn columns(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Placed => ("PLACED", None),
            Self::Confirmed => ("CONFIRMED", None),
            Self::Cancelled(Why::OutOfStock) => ("CANCELLED", Some("OUT_OF_STOCK")),
            Self::Cancelled(Why::Declined) => ("CANCELLED", Some("DECLINED")),
            Self::Cancelled(Why::TimedOut) => ("CANCELLED", Some("TIMED_OUT")),
            Self::Cancelled(Why::Refunded) => ("CANCELLED", Some("REFUNDED")),
        }
    }

    /// What stands in the table; none if it is unreadable.
    pub(crate) fn of_columns(state: &str, reason: Option<&str>) -> Option<Self> {
        let cancelled = [Why::OutOfStock, Why::Declined, Why::TimedOut, Why::Refunded].map(Self::Cancelled);
        [Self::Placed, Self::Confirmed].into_iter().chain(cancelled).find(|order| order.columns() == (state, reason))
    }
}

/// States that stand in a table under one name.
macro_rules! named {
    ($kind:ident { $($state:ident = $name:literal),+ $(,)? }) => {
        impl $kind {
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$state => $name),+ }
            }

            pub(crate) fn of_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$state),)+ _ => None }
            }
        }
    };
}

named!(Stock {
    Reserved = "RESERVED",
    Rejected = "REJECTED",
    Released = "RELEASED",
    Shipped = "SHIPPED",
    Void = "VOID",
});
named!(Payment { Charged = "CHARGED", Declined = "DECLINED", Refunded = "REFUNDED", Void = "VOID" });

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    enum Service {
        Order,
        Inventory,
        Payment,
    }

    /// Who hears a word: as the services subscribe.
    fn hearers(word: Word) -> &'static [Service] {
        match word {
            Word::PlaceOrder | Word::StockRejected | Word::PaymentTaken | Word::PaymentRefunded => &[Service::Order],
            Word::OrderPlaced | Word::OrderConfirmed => &[Service::Inventory],
            Word::OrderTimedOut => &[Service::Inventory, Service::Payment],
            Word::StockReserved => &[Service::Payment],
            Word::PaymentDeclined => &[Service::Order, Service::Inventory],
        }
    }

    /// One order in three services, and what is on its way.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    struct World {
        order: Option<Order>,
        stock: Option<Stock>,
        payment: Option<Payment>,
        on_the_way: BTreeSet<(Service, Word)>,
    }

    impl World {
        fn tell(&mut self, told: Option<Word>) {
            if let Some(word) = told {
                self.on_the_way.extend(hearers(word).iter().map(|service| (*service, word)));
            }
        }

        fn hear(&self, service: Service, word: Word, in_stock: bool, enough: bool) -> Self {
            let mut next = self.clone();
            next.on_the_way.remove(&(service, word));
            let told = match service {
                Service::Order => order(self.order, word).map(|(state, told)| {
                    next.order = Some(state);
                    told
                }),
                Service::Inventory => stock(self.stock, word, in_stock).map(|(state, told)| {
                    next.stock = Some(state);
                    told
                }),
                Service::Payment => payment(self.payment, word, enough).map(|(state, told)| {
                    next.payment = Some(state);
                    told
                }),
            };
            next.tell(told.unwrap_or_else(|error| panic!("{service:?}: {error}, in {self:?}")));
            next
        }

        /// All that can happen next.
        fn next(&self, in_stock: bool, enough: bool) -> Vec<Self> {
            let mut next: Vec<_> =
                self.on_the_way.iter().map(|(service, word)| self.hear(*service, *word, in_stock, enough)).collect();
            if self.order == Some(Order::Placed) {
                next.push(self.hear(Service::Order, Word::OrderTimedOut, in_stock, enough));
            }
            next
        }
    }

    #[test]
    fn in_whatever_order_words_are_heard_the_services_agree_in_the_end() {
        for (in_stock, enough) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut first = World::default();
            first.tell(Some(Word::PlaceOrder));
            let (mut seen, mut open, mut ends) = (HashSet::new(), vec![first], BTreeSet::new());
            while let Some(world) = open.pop() {
                let next = world.next(in_stock, enough);
                if next.is_empty() {
                    ends.insert((world.order, world.stock, world.payment));
                }
                open.extend(next.into_iter().filter(|next| seen.insert(next.clone())));
            }
            let mut expected =
                BTreeSet::from([(Some(Order::Cancelled(Why::TimedOut)), Some(Stock::Void), Some(Payment::Void))]);
            let timed_out = Some(Order::Cancelled(Why::TimedOut));
            if in_stock {
                expected.insert((timed_out, Some(Stock::Released), Some(Payment::Void)));
            } else {
                expected.insert((timed_out, Some(Stock::Rejected), Some(Payment::Void)));
                expected.insert((Some(Order::Cancelled(Why::OutOfStock)), Some(Stock::Rejected), None));
            }
            if in_stock && enough {
                expected.insert((Some(Order::Confirmed), Some(Stock::Shipped), Some(Payment::Charged)));
                let refunded = Some(Order::Cancelled(Why::Refunded));
                expected.insert((refunded, Some(Stock::Released), Some(Payment::Refunded)));
            }
            if in_stock && !enough {
                let declined = Some(Payment::Declined);
                expected.insert((Some(Order::Cancelled(Why::Declined)), Some(Stock::Released), declined));
                expected.insert((timed_out, Some(Stock::Released), declined));
            }
            assert_eq!(ends, expected, "in stock: {in_stock}, enough money: {enough}");
        }
    }

    #[test]
    fn what_comes_twice_is_a_contradiction_and_charges_nobody() {
        assert!(payment(Some(Payment::Charged), Word::StockReserved, true).is_err());
        assert!(stock(Some(Stock::Reserved), Word::OrderPlaced, true).is_err());
        assert!(order(Some(Order::Placed), Word::PlaceOrder).is_err());
        let told = order(None, Word::PaymentTaken).unwrap_err().to_string();
        assert!(told.contains("PaymentTaken") && told.contains("None"), "{told}");
    }

    #[test]
    fn states_are_read_as_they_are_written() {
        let whys = [Why::OutOfStock, Why::Declined, Why::TimedOut, Why::Refunded];
        for order in [Order::Placed, Order::Confirmed].into_iter().chain(whys.map(Order::Cancelled)) {
            let (state, reason) = order.columns();
            assert_eq!(Order::of_columns(state, reason), Some(order));
        }
        assert_eq!(Order::of_columns("PLACED", Some("DECLINED")), None);
        assert_eq!(Stock::of_name(Stock::Shipped.name()), Some(Stock::Shipped));
        assert_eq!(Payment::of_name("SHIPPED"), None);
    }
}
