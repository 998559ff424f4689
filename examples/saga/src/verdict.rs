//! The count at the end: three files, plain SQL, nothing of Pillarbox and nothing of the services' own logic.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use sqlx::{FromRow, Row as _, SqliteConnection, sqlite::SqliteRow};

use crate::{
    Failure,
    plan::{Plan, SERVICES, look_into},
};

/// How many faults are shown.
const MOST_SHOWN: usize = 20;

/// What stands in the files.
#[derive(Debug)]
struct Books {
    orders: Vec<Order>,
    payments: BTreeMap<String, Payment>,
    bookings: Vec<Booking>,
    accounts: BTreeMap<String, i64>,
    reservations: BTreeMap<String, Reservation>,
    moves: Vec<Move>,
    stock: BTreeMap<String, i64>,
    /// Service, event, status.
    unsent: Vec<(&'static str, String, String)>,
    /// Service, event, why.
    letters: Vec<(&'static str, String, String)>,
}

#[derive(Debug)]
struct Order {
    id: String,
    customer: String,
    item: String,
    quantity: i64,
    cents: i64,
    state: String,
    reason: Option<String>,
}

#[derive(Debug)]
struct Payment {
    order_id: String,
    cents: i64,
    state: String,
}

#[derive(Debug)]
struct Booking {
    order_id: String,
    customer: String,
    kind: String,
    cents: i64,
}

#[derive(Debug)]
struct Reservation {
    order_id: String,
    quantity: i64,
    state: String,
}

#[derive(Debug)]
struct Move {
    order_id: String,
    item: String,
    quantity: i64,
}

/// Reads a row by the names of its columns.
macro_rules! row {
    ($name:ident { $($column:ident),+ $(,)? }) => {
        impl FromRow<'_, SqliteRow> for $name {
            fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
                Ok(Self { $($column: row.try_get(stringify!($column))?),+ })
            }
        }
    };
}

row!(Order { id, customer, item, quantity, cents, state, reason });
row!(Payment { order_id, cents, state });
row!(Booking { order_id, customer, kind, cents });
row!(Reservation { order_id, quantity, state });
row!(Move { order_id, item, quantity });

/// Counts, and tells. Whether all agrees.
pub(crate) async fn tell(folder: &Path, plan: &Plan) -> Result<bool, Failure> {
    let books = Books::read(folder).await?;
    println!("how the orders ended:");
    let mut ends: BTreeMap<_, usize> = BTreeMap::new();
    for order in &books.orders {
        *ends.entry((&order.state, order.reason.as_deref().unwrap_or_default())).or_default() += 1;
    }
    for ((state, reason), count) in ends {
        println!("  {count:>6}  {state} {reason}");
    }
    let booked = |kind: &str| {
        let of_kind = books.bookings.iter().filter(|booking| booking.kind == kind);
        of_kind.fold((0, 0), |(count, cents), booking| (count + 1, cents + booking.cents))
    };
    let ((charges, charged), (refunds, refunded)) = (booked("CHARGE"), booked("REFUND"));
    println!("money: {charges} charges of {charged} cents, {refunds} refunds of {refunded} cents");
    let (opening, left): (i64, i64) = (plan.stock.values().sum(), books.stock.values().sum());
    println!("stock: {opening} pieces at the beginning, {left} left");
    let faults = books.faults(plan);
    for fault in faults.iter().take(MOST_SHOWN) {
        println!("WRONG: {fault}");
    }
    if faults.len() > MOST_SHOWN {
        println!("... and {} more", faults.len() - MOST_SHOWN);
    }
    if faults.is_empty() {
        println!("verdict: money, stock and orders agree; nothing is lost, nobody was charged twice");
    } else {
        println!("verdict: {} faults", faults.len());
    }
    Ok(faults.is_empty())
}

impl Books {
    async fn read(folder: &Path) -> Result<Self, Failure> {
        let mut order = look_into(folder, "order").await?;
        let mut inventory = look_into(folder, "inventory").await?;
        let mut payment = look_into(folder, "payment").await?;
        let orders = "select id, customer, item, quantity, cents, state, reason from orders order by id";
        let payments: Vec<Payment> = all(&mut payment, "select order_id, cents, state from payment").await?;
        let reservations: Vec<Reservation> =
            all(&mut inventory, "select order_id, quantity, state from reservation").await?;
        let accounts: Vec<(String, i64)> = all(&mut payment, "select customer, cents from account").await?;
        let stock: Vec<(String, i64)> = all(&mut inventory, "select item, quantity from stock").await?;
        let bookings = "select order_id, customer, kind, cents from booking";
        let mut books = Self {
            orders: all(&mut order, orders).await?,
            payments: payments.into_iter().map(|payment| (payment.order_id.clone(), payment)).collect(),
            bookings: all(&mut payment, bookings).await?,
            accounts: accounts.into_iter().collect(),
            reservations: reservations.into_iter().map(|one| (one.order_id.clone(), one)).collect(),
            moves: all(&mut inventory, "select order_id, item, quantity from move").await?,
            stock: stock.into_iter().collect(),
            unsent: Vec::new(),
            letters: Vec::new(),
        };
        for (service, database) in SERVICES.into_iter().zip([&mut order, &mut inventory, &mut payment]) {
            let unsent: Vec<(String, String)> =
                all(database, "select event_type, status from outbox_event where status <> 'DONE'").await?;
            books.unsent.extend(unsent.into_iter().map(|(event, status)| (service, event, status)));
            let letters: Vec<(String, String)> =
                all(database, "select event_type, reason from inbox_letter where status = 'PENDING'").await?;
            books.letters.extend(letters.into_iter().map(|(event, reason)| (service, event, reason)));
        }
        Ok(books)
    }

    /// Everything that is not as it should be.
    fn faults(&self, plan: &Plan) -> Vec<String> {
        let mut faults = Vec::new();
        self.compare_orders(plan, &mut faults);
        for order in &self.orders {
            self.compare_services(order, &mut faults);
        }
        self.compare_sums(plan, &mut faults);
        for (service, event, status) in &self.unsent {
            faults.push(format!("the {service} service has an unsent {event}, {status}"));
        }
        for (service, event, reason) in &self.letters {
            faults.push(format!("the {service} service has a dead letter, {event}: {reason}"));
        }
        faults
    }

    /// Every order that was placed is there as it was placed, and no other.
    fn compare_orders(&self, plan: &Plan, faults: &mut Vec<String>) {
        let known: BTreeMap<_, _> = self.orders.iter().map(|order| (&order.id, order)).collect();
        for placed in &plan.orders {
            let Some(order) = known.get(&placed.id) else {
                faults.push(format!("{} is lost", placed.id));
                continue;
            };
            let is = (&order.customer, &order.item, order.quantity, order.cents);
            let should = (&placed.customer, &placed.item, placed.quantity, placed.cents);
            if is != should {
                faults.push(format!("{} was placed as {should:?}, and is {is:?}", order.id));
            }
        }
        let placed: BTreeSet<_> = plan.orders.iter().map(|order| &order.id).collect();
        let of_others = self.payments.keys().chain(self.reservations.keys());
        let all: BTreeSet<_> = known.keys().copied().chain(of_others).collect();
        faults.extend(all.difference(&placed).map(|id| format!("{id} was never placed")));
    }

    /// One order: its state in each service, its money and its stock.
    fn compare_services(&self, order: &Order, faults: &mut Vec<String>) {
        let id = &order.id;
        let payment = self.payments.get(id);
        let reservation = self.reservations.get(id);
        let (paid, held) =
            (payment.map_or("NONE", |payment| &payment.state), reservation.map_or("NONE", |one| &one.state));
        let agrees = match (order.state.as_str(), order.reason.as_deref()) {
            ("CONFIRMED", None) => paid == "CHARGED" && held == "SHIPPED",
            ("CANCELLED", Some("OUT_OF_STOCK")) => paid == "NONE" && held == "REJECTED",
            ("CANCELLED", Some("DECLINED")) => paid == "DECLINED" && held == "RELEASED",
            ("CANCELLED", Some("REFUNDED")) => paid == "REFUNDED" && held == "RELEASED",
            ("CANCELLED", Some("TIMED_OUT")) => {
                ["VOID", "DECLINED"].contains(&paid) && ["VOID", "REJECTED", "RELEASED"].contains(&held)
            }
            (state, reason) => {
                faults.push(format!("{id} has not ended: {state} {}", reason.unwrap_or_default()));
                true
            }
        };
        if !agrees {
            let reason = order.reason.as_deref().unwrap_or_default();
            faults.push(format!("{id} is {} {reason}, its payment {paid}, its reservation {held}", order.state));
        }
        if payment.is_some_and(|payment| payment.cents != order.cents)
            || reservation.is_some_and(|reservation| reservation.quantity != order.quantity)
        {
            faults.push(format!("{id} has another price or quantity in the payment service or the inventory"));
        }
        let is_confirmed = order.state == "CONFIRMED";
        let booked = |kind: &str| -> Vec<i64> {
            let of_order = self.bookings.iter().filter(|booking| booking.order_id == *id && booking.kind == kind);
            of_order.map(|booking| booking.cents).collect()
        };
        let (charges, refunds) = (booked("CHARGE"), booked("REFUND"));
        if charges.len() > 1 {
            faults.push(format!("{id} was charged {} times", charges.len()));
        }
        let net = charges.iter().sum::<i64>() - refunds.iter().sum::<i64>();
        let due = if is_confirmed { order.cents } else { 0 };
        if net != due {
            faults.push(format!("{id} has cost {net} cents, and should {due}"));
        }
        let moved: i64 = self.moves.iter().filter(|one| one.order_id == *id).map(|one| one.quantity).sum();
        let due = if is_confirmed { -order.quantity } else { 0 };
        if moved != due {
            faults.push(format!("{id} has moved {moved} pieces, and should {due}"));
        }
    }

    /// All orders together: what there was at the beginning, what went, and what is left.
    fn compare_sums(&self, plan: &Plan, faults: &mut Vec<String>) {
        let confirmed = || self.orders.iter().filter(|order| order.state == "CONFIRMED");
        let sign = |booking: &Booking| if booking.kind == "CHARGE" { booking.cents } else { -booking.cents };
        let (net, due): (i64, i64) = (self.bookings.iter().map(sign).sum(), confirmed().map(|order| order.cents).sum());
        if net != due {
            faults.push(format!("charges minus refunds are {net} cents, and the confirmed orders cost {due}"));
        }
        for (customer, opening) in &plan.accounts {
            let gone: i64 = self.bookings.iter().filter(|booking| booking.customer == *customer).map(sign).sum();
            let (left, due) = (self.accounts.get(customer).copied().unwrap_or(0), opening.cents - gone);
            if left != due {
                faults.push(format!("{customer} has {left} cents, and should have {due}"));
            }
        }
        for (item, opening) in &plan.stock {
            let sold: i64 = confirmed().filter(|order| order.item == *item).map(|order| order.quantity).sum();
            let left = self.stock.get(item).copied().unwrap_or(0);
            if left != opening - sold {
                faults
                    .push(format!("{left} {item} are left, and should be {}: {opening} minus {sold}", opening - sold));
            }
            let moved: i64 = self.moves.iter().filter(|one| one.item == *item).map(|one| one.quantity).sum();
            if left < 0 || left != opening + moved {
                faults.push(format!("{left} {item} are left, and the moves say {}", opening + moved));
            }
        }
    }
}

async fn all<T>(database: &mut SqliteConnection, query: &'static str) -> Result<Vec<T>, Failure>
where
    T: for<'r> FromRow<'r, SqliteRow> + Send + Unpin,
{
    sqlx::query_as(query).fetch_all(database).await.map_err(|error| format!("{query}: {error}").into())
}
