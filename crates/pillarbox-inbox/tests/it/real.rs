//! The consumer's faults with the inbox on real servers, and messages from real brokers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use pillarbox_core::{
    HandlerError, Outbox,
    engine::Work,
    port::{
        Actor, BoxFuture, Gives, InboxStore, InboxUpkeep, LetterStatus, LetterStore, Message, Received, SettleStore,
        Sink, SinkError, Source, Store, Ticket, TransactStore,
    },
};
use pillarbox_inbox::{Consumer, DeadLetters, Error, Inbox};
use pillarbox_mysql::{MySqlInbox, MySqlStore};
use pillarbox_postgres::{PostgresInbox, PostgresStore};
use pillarbox_testkit::{
    exam::run,
    servers::{Database, Proxy, Shared},
};

use crate::{
    kill::{order, place, place::Place},
    support::{Gate, OrderPlaced, letters, retry, until},
};

/// A database of the test's own, with a table of charges.
trait Till: Send + Sync + Sized + 'static {
    type Store: Store + SettleStore + Clone + 'static;
    type Tables: InboxStore<<Self::Store as TransactStore>::Tx> + InboxUpkeep + LetterStore + Clone;

    fn server() -> Shared;
    fn open(url: &str) -> impl Future<Output = Self> + Send;
    fn store(&self) -> &Self::Store;
    fn tables(&self) -> Self::Tables;
    fn run(&self, sql: &'static str) -> impl Future<Output = ()> + Send;
    fn charges(&self) -> impl Future<Output = Vec<i64>> + Send;
    fn charge(work: &mut Work<Self::Store>, number: i64) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

macro_rules! till {
    ($till:ident, $store:ident, $tables:ident, $server:ident, $insert:literal, [$($wait:tt)*]) => {
        struct $till($store);

        impl Till for $till {
            type Store = $store;
            type Tables = $tables;

            fn server() -> Shared {
                Shared::$server
            }

            async fn open(url: &str) -> Self {
                Self($store::open(url)$($wait)*.unwrap())
            }

            fn store(&self) -> &$store {
                &self.0
            }

            fn tables(&self) -> $tables {
                $tables::new(&self.0)
            }

            async fn run(&self, sql: &'static str) {
                sqlx::query(sql).execute(self.0.pool()).await.unwrap();
            }

            async fn charges(&self) -> Vec<i64> {
                sqlx::query_scalar("select number from charge order by number").fetch_all(self.0.pool()).await.unwrap()
            }

            async fn charge(work: &mut Work<$store>, number: i64) -> Result<(), HandlerError> {
                sqlx::query($insert).bind(number).execute(&mut **work).await?;
                Ok(())
            }
        }
    };
}
till!(OnPostgres, PostgresStore, PostgresInbox, Postgres, "insert into charge values ($1)", []);
till!(OnMariaDb, MySqlStore, MySqlInbox, MariaDb, "insert into charge values (?)", [.await]);

/// A source of any broker. If it is to, its acknowledgements never leave the process, as if that had died before them.
struct Any {
    inner: Box<dyn Source>,
    lost: Option<Arc<AtomicBool>>,
}

impl Source for Any {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn gives(&self) -> Gives {
        self.inner.gives()
    }

    fn receive(&self, most: usize) -> BoxFuture<'_, Result<Vec<Received>, SinkError>> {
        self.inner.receive(most)
    }

    fn acknowledge<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        let Some(lost) = &self.lost else { return self.inner.acknowledge(tickets) };
        lost.store(true, Ordering::SeqCst);
        Box::pin(async { tickets.iter().map(|_| Err(SinkError::unavailable("it is dead"))).collect() })
    }

    fn give_back<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        self.inner.give_back(tickets)
    }

    fn hold<'a>(&'a self, tickets: &'a [Ticket]) -> BoxFuture<'a, ()> {
        self.inner.hold(tickets)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), SinkError>> {
        self.inner.check()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

struct Scene<T: Till> {
    till: T,
    place: Place,
    sink: Arc<dyn Sink>,
    outbox: Outbox<T::Store>,
    database: Database,
    /// The consumer, and its group where the broker has some.
    name: &'static str,
    /// How often number 13 was.
    declined: Arc<AtomicUsize>,
}

impl<T: Till> Scene<T> {
    async fn new(place: Place) -> Self {
        let database = T::server().database();
        let till = T::open(&database.url()).await;
        let outbox = Outbox::writer_only(till.store().clone()).start().await.unwrap();
        // No key and no constraint: work that is done twice shows.
        till.run("create table charge (number bigint not null)").await;
        Self { till, sink: place.sink(), place, outbox, database, name: "billing", declined: Arc::default() }
    }

    fn queue(&self) -> DeadLetters {
        DeadLetters::new(self.till.tables()).sink(self.sink.clone())
    }

    async fn send(&self, message: Message) {
        for answer in self.sink.send(&[message]).await {
            answer.unwrap();
        }
    }

    async fn send_orders(&self, numbers: impl IntoIterator<Item = i64>) {
        for number in numbers {
            self.send(order(&self.place.topic, number)).await;
        }
    }

    /// From here on, this consumer is meant.
    fn turn_to(&mut self, name: &'static str) {
        self.name = name;
        self.place.subscription["group"] = name.into();
    }

    /// Charges, as shipping a hundred more; number 13 fails when it is charged, and all wait at the gate, if there is one.
    async fn consumer_of(&self, lost: Option<Arc<AtomicBool>>, queue: DeadLetters, gate: Option<Gate>) -> Consumer {
        let declined = self.declined.clone();
        let more = if self.name == "shipping" { 100 } else { 0 };
        Consumer::builder(self.name, Any { inner: self.place.source(), lost }, queue)
            .inbox(Inbox::new(self.till.tables()), &self.outbox)
            .retry(retry())
            .handle_in_tx(move |mut work: Work<T::Store>, placed: OrderPlaced| {
                let (gate, declined) = (gate.clone(), declined.clone());
                async move {
                    T::charge(&mut work, i64::from(placed.number) + more).await?;
                    if let Some(gate) = gate {
                        gate.pass().await;
                    }
                    if placed.number == 13 {
                        declined.fetch_add(1, Ordering::SeqCst);
                        return Err(HandlerError::msg("declined"));
                    }
                    Ok(())
                }
            })
            .start()
            .await
            .unwrap()
    }

    async fn consumer(&self, queue: DeadLetters, gate: Option<Gate>) -> Consumer {
        self.consumer_of(None, queue, gate).await
    }

    async fn until_charged(&self, numbers: &[i64]) {
        until(&format!("{numbers:?}"), || async { self.till.charges().await == numbers }).await;
    }

    /// Waits until the broker has nothing left for the group, where it can tell, and the consumer holds nothing.
    async fn until_over(&self, consumer: &Consumer) {
        until("nothing is held", || async { consumer.held() == 0 }).await;
        self.place.until_all_is_acknowledged().await;
    }
}

/// The first consumer does the work, and dies before it acknowledges; the second gets the messages again.
async fn twice<T: Till>(place: Place, forgets: bool) -> Vec<i64> {
    let scene = Scene::<T>::new(place).await;
    scene.send_orders(0..3).await;
    let acknowledges = Arc::new(AtomicBool::new(false));
    let first = scene.consumer_of(Some(acknowledges.clone()), scene.queue(), None).await;
    scene.until_charged(&[0, 1, 2]).await;
    until("an acknowledgement that is lost", || async { acknowledges.load(Ordering::SeqCst) }).await;
    drop(first);
    if forgets {
        for sql in ["delete from inbox_seen_0", "delete from inbox_seen_1", "delete from inbox_seen_2"] {
            scene.till.run(sql).await;
        }
    }
    let second = scene.consumer(scene.queue(), None).await;
    scene.send_orders([3]).await;
    until("the last", || async { scene.till.charges().await.contains(&3) }).await;
    if forgets {
        scene.until_charged(&[0, 0, 1, 1, 2, 2, 3]).await;
    }
    scene.until_over(&second).await;
    second.shutdown().await;
    scene.till.charges().await
}

async fn a_crash_between_work_and_acknowledgement_leaves_the_effect_once<T: Till>(place: Place) {
    assert_eq!(twice::<T>(place, false).await, [0, 1, 2, 3], "each once");
}

async fn a_redelivery_after_the_window_is_done_again<T: Till>(place: Place) {
    assert_eq!(twice::<T>(place, true).await, [0, 0, 1, 1, 2, 2, 3], "nobody knows them any more");
}

async fn a_crash_between_entry_and_work_loses_nothing<T: Till>(place: Place) {
    let scene = Scene::<T>::new(place).await;
    let gate = Gate::new();
    scene.send_orders([1]).await;
    let first = scene.consumer(scene.queue(), Some(gate.clone())).await;
    gate.reached(1).await;
    drop(first);
    let second = scene.consumer(scene.queue(), None).await;
    scene.until_charged(&[1]).await;
    scene.until_over(&second).await;
    second.shutdown().await;
    assert_eq!(scene.till.charges().await, [1]);
}

async fn a_poison_message_is_parked_at_once_and_others_go_on<T: Till>(place: Place) {
    let scene = Scene::<T>::new(place).await;
    scene.send_orders([1]).await;
    let payload = Bytes::from_static(b"{\"number\": \"one\"}");
    scene.send(Message { payload, ..order(&scene.place.topic, 1) }).await;
    scene.send_orders([2]).await;
    let consumer = scene.consumer(scene.queue(), None).await;
    scene.until_charged(&[1, 2]).await;
    let [letter] = &letters(&scene.queue(), 1).await[..] else { panic!("one letter") };
    assert_eq!(letter.attempts, 0, "{}", letter.reason);
    scene.until_over(&consumer).await;
    consumer.shutdown().await;
}

async fn while_the_handler_still_fails_the_count_survives_and_the_limit_holds<T: Till>(place: Place) {
    let scene = Scene::<T>::new(place).await;
    let (queue, ada) = (scene.queue(), Actor::new("ada"));
    scene.send_orders([13]).await;
    let consumer = scene.consumer(scene.queue(), None).await;
    let id = letters(&queue, 1).await.remove(0).id;
    for replay in 1..=3 {
        queue.replay(&id, &ada).await.unwrap();
        until(&format!("replay {replay} has failed"), || async {
            let letter = queue.find(&id).await.unwrap().unwrap();
            letter.status == LetterStatus::Pending && letter.replays == replay
        })
        .await;
    }
    let error = queue.replay(&id, &ada).await.unwrap_err();
    assert!(matches!(error, Error::TooManyReplays { replays: 3, .. }), "{error}");
    assert_eq!((letters(&queue, 1).await.len(), scene.till.charges().await), (1, vec![]));
    scene.until_over(&consumer).await;
    consumer.shutdown().await;
}

/// The broker's own id is another one each time.
async fn a_broken_document_is_one_letter_and_the_limit_of_its_replays_holds<T: Till>(place: Place) {
    let scene = Scene::<T>::new(place).await;
    let (queue, ada) = (scene.queue(), Actor::new("ada"));
    let content_type = "application/cloudevents+json".into();
    let payload = Bytes::from_static(b"{broken");
    scene.send(Message { content_type, attributes: Vec::new(), payload, ..order(&scene.place.topic, 1) }).await;
    let consumer = scene.consumer(scene.queue(), None).await;
    let id = letters(&queue, 1).await.remove(0).id;
    for replay in 1..=3 {
        queue.replay(&id, &ada).await.unwrap();
        until(&format!("replay {replay} has failed"), || async {
            let letter = queue.find(&id).await.unwrap().unwrap();
            letter.status == LetterStatus::Pending && letter.replays == replay
        })
        .await;
    }
    let error = queue.replay(&id, &ada).await.unwrap_err();
    assert!(matches!(error, Error::TooManyReplays { replays: 3, .. }), "{error}");
    assert_eq!(letters(&queue, 1).await.len(), 1);
    scene.until_over(&consumer).await;
    consumer.shutdown().await;
}

async fn a_dead_letter_queue_that_is_down_keeps_the_message_unacknowledged<T: Till>(place: Place) {
    let scene = Scene::<T>::new(place).await;
    let url = scene.database.url();
    let proxy = Proxy::to_url(&url).unwrap();
    let behind = T::open(&proxy.url(&url)).await;
    proxy.refuse();
    proxy.cut();
    scene.send_orders([13, 1]).await;
    let queue = DeadLetters::new(behind.tables()).sink(scene.sink.clone());
    let first = scene.consumer(queue, None).await;
    scene.until_charged(&[1]).await;
    until("its last attempt", || async { scene.declined.load(Ordering::SeqCst) >= 3 }).await;
    until("one waits for its place", || async { first.held() == 1 }).await;
    drop(first);
    assert_eq!(scene.queue().pending().await.unwrap(), 0);
    let second = scene.consumer(scene.queue(), None).await;
    assert_eq!(letters(&scene.queue(), 1).await[0].attempts, 3, "it came again");
    scene.until_over(&second).await;
    second.shutdown().await;
    assert_eq!(scene.till.charges().await, [1]);
}

/// Both are given each message twice, and share the tables of one inbox.
async fn two_consumers_of_one_event_do_not_suppress_each_other<T: Till>(place: Place) {
    let mut scene = Scene::<T>::new(place).await;
    scene.send_orders(0..3).await;
    let mut first = Vec::new();
    for name in ["billing", "shipping"] {
        scene.turn_to(name);
        let acknowledges = Arc::new(AtomicBool::new(false));
        first.push((scene.consumer_of(Some(acknowledges.clone()), scene.queue(), None).await, acknowledges));
    }
    scene.until_charged(&[0, 1, 2, 100, 101, 102]).await;
    for (consumer, acknowledges) in first {
        until("an acknowledgement that is lost", || async { acknowledges.load(Ordering::SeqCst) }).await;
        drop(consumer);
    }
    scene.send_orders([3]).await;
    for name in ["billing", "shipping"] {
        scene.turn_to(name);
        let second = scene.consumer(scene.queue(), None).await;
        let last = if name == "billing" { 3 } else { 103 };
        until("the last", || async { scene.till.charges().await.contains(&last) }).await;
        scene.until_over(&second).await;
        second.shutdown().await;
    }
    assert_eq!(scene.till.charges().await, [0, 1, 2, 3, 100, 101, 102, 103], "each once for each");
    assert_eq!(scene.queue().pending().await.unwrap(), 0);
}

/// It is away when work is done, and can't be told.
async fn a_restart_of_the_broker_leaves_each_effect_once<T: Till>(place: Place) {
    let mut scene = Scene::<T>::new(place).await;
    let gate = Gate::new();
    scene.send_orders(0..6).await;
    let consumer = scene.consumer(scene.queue(), Some(gate.clone())).await;
    gate.reached(1).await;
    tokio::task::block_in_place(|| scene.place.stop());
    gate.open();
    until("work without the broker", || async { !scene.till.charges().await.is_empty() }).await;
    tokio::task::block_in_place(|| scene.place.start_again());
    for number in 6..9 {
        let message = order(&scene.place.topic, number);
        // The same message: nobody knows whether one without an answer has come.
        until("it is sent", || async { scene.sink.send(std::slice::from_ref(&message)).await == [Ok(())] }).await;
    }
    until("all", || async {
        let charges = scene.till.charges().await;
        (0..9).all(|number| charges.contains(&number))
    })
    .await;
    scene.until_over(&consumer).await;
    consumer.shutdown().await;
    assert_eq!(scene.till.charges().await, [0, 1, 2, 3, 4, 5, 6, 7, 8], "each once");
    assert_eq!(scene.queue().pending().await.unwrap(), 0);
}

macro_rules! cases {
    ($($name:ident: $place:expr, $till:ident;)*) => {$(
        mod $name {
            use super::{$till, place, run};

            cases!(@ $place, $till;
                a_crash_between_work_and_acknowledgement_leaves_the_effect_once,
                a_crash_between_entry_and_work_loses_nothing,
                a_redelivery_after_the_window_is_done_again,
                a_poison_message_is_parked_at_once_and_others_go_on,
                while_the_handler_still_fails_the_count_survives_and_the_limit_holds,
                a_broken_document_is_one_letter_and_the_limit_of_its_replays_holds,
                a_dead_letter_queue_that_is_down_keeps_the_message_unacknowledged);
        }
    )*};
    (@ $place:expr, $till:ident; $($case:ident),*) => {$(
        #[test]
        fn $case() {
            run(async { super::$case::<$till>($place).await });
        }
    )*};
}
cases! {
    nats_and_postgres: place::nats().await, OnPostgres;
    redis_and_mariadb: place::redis(), OnMariaDb;
    rabbitmq_and_postgres: place::rabbitmq().await, OnPostgres;
}

mod groups_of_nats_and_postgres {
    use super::{OnPostgres, place, run};

    cases!(@ place::nats().await, OnPostgres; two_consumers_of_one_event_do_not_suppress_each_other);
}

mod groups_of_redis_and_mariadb {
    use super::{OnMariaDb, place, run};

    cases!(@ place::redis(), OnMariaDb; two_consumers_of_one_event_do_not_suppress_each_other);
}

mod kafka_and_mariadb {
    use super::{OnMariaDb, place, run};

    cases!(@ place::kafka(), OnMariaDb;
        a_crash_between_work_and_acknowledgement_leaves_the_effect_once,
        a_broken_document_is_one_letter_and_the_limit_of_its_replays_holds,
        a_redelivery_after_the_window_is_done_again);
}

mod mqtt_and_postgres {
    use super::{OnPostgres, place, run};

    cases!(@ place::mqtt().await, OnPostgres;
        a_crash_between_work_and_acknowledgement_leaves_the_effect_once,
        a_broken_document_is_one_letter_and_the_limit_of_its_replays_holds,
        a_redelivery_after_the_window_is_done_again);
}

/// Servers that are stopped and started again.
mod private {
    use super::{OnMariaDb, OnPostgres, a_restart_of_the_broker_leaves_each_effect_once, place, run};

    #[test]
    fn a_restart_of_nats_leaves_each_effect_once_on_postgres() {
        run(async { a_restart_of_the_broker_leaves_each_effect_once::<OnPostgres>(place::nats().await).await });
    }

    #[test]
    fn a_restart_of_redis_leaves_each_effect_once_on_mariadb() {
        run(async { a_restart_of_the_broker_leaves_each_effect_once::<OnMariaDb>(place::redis()).await });
    }

    #[test]
    fn a_restart_of_rabbitmq_leaves_each_effect_once_on_postgres() {
        run(async {
            a_restart_of_the_broker_leaves_each_effect_once::<OnPostgres>(place::private_rabbitmq().await).await;
        });
    }

    #[test]
    fn a_restart_of_mosquitto_leaves_each_effect_once_on_postgres() {
        run(async { a_restart_of_the_broker_leaves_each_effect_once::<OnPostgres>(place::mqtt().await).await });
    }

    /// The mock's broker goes away and comes back, with what it has kept.
    #[test]
    fn a_kafka_broker_that_is_away_leaves_each_effect_once_on_mariadb() {
        run(async { a_restart_of_the_broker_leaves_each_effect_once::<OnMariaDb>(place::kafka()).await });
    }
}
