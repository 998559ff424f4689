//! M1, M3: what an outbox tells about itself.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use pillarbox_core::{
    Delivery, HandlerError, HandlerExt as _, RetryPolicy,
    domain::Status,
    engine::PurgeOptions,
    observe::name,
    port::{OwnStore, PurgeScope},
};
use pillarbox_testkit::{Call, probe::Which};
use tracing::{Event, Level, Metadata, Subscriber, field, span};

use super::{DOWN, HOUR, ROUTE, Stage, event, keyed, pass, until, write};

/// Everything that is measured in this thread while it lives.
pub(super) struct Meter {
    snapshots: Snapshotter,
    counts: parking_lot::Mutex<BTreeMap<String, u64>>,
    _here: metrics::LocalRecorderGuard<'static>,
}

impl Meter {
    pub(super) fn new() -> Self {
        let recorder: &'static DebuggingRecorder = Box::leak(Box::default());
        Self {
            snapshots: recorder.snapshotter(),
            counts: parking_lot::Mutex::default(),
            _here: metrics::set_default_local_recorder(recorder),
        }
    }

    /// Every metric by its name; a label's value joined by a dot. A look sets all to 0 again.
    fn look(&self) -> BTreeMap<String, DebugValue> {
        let all = self.snapshots.snapshot().into_vec();
        let named = |key: &metrics::Key| {
            let labels = key.labels().map(|label| format!(".{}", label.value()));
            std::iter::once(key.name().to_owned()).chain(labels).collect::<String>()
        };
        let look: BTreeMap<_, _> = all.into_iter().map(|(key, _, _, value)| (named(key.key()), value)).collect();
        for (name, value) in &look {
            if let DebugValue::Counter(count) = value {
                *self.counts.lock().entry(name.clone()).or_default() += count;
            }
        }
        look
    }

    /// A counter's value.
    pub(super) fn count(&self, name: &str) -> u64 {
        self.look();
        *self.counts.lock().get(name).unwrap_or_else(|| panic!("{name} is not registered"))
    }

    /// Reads gauges from one look. A look sets them to 0, so they are right only after the next sample.
    fn levels(&self) -> impl Fn(&str) -> f64 {
        let look = self.look();
        move |name| match look.get(&format!("pillarbox_{name}")) {
            Some(DebugValue::Gauge(level)) => level.into_inner(),
            other => panic!("{name} is {other:?}"),
        }
    }
}

/// A line that was logged.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) level: Level,
    message: String,
    fields: BTreeMap<&'static str, String>,
}

impl Line {
    pub(super) fn field(&self, name: &str) -> String {
        self.fields.get(name).cloned().unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

/// Everything that is logged in this thread while it lives.
pub(super) struct Tracer {
    lines: Lines,
    _here: tracing::subscriber::DefaultGuard,
}

type Lines = Arc<parking_lot::Mutex<Vec<Line>>>;

struct Catcher {
    lines: Lines,
    spans: AtomicU64,
}

impl Tracer {
    pub(super) fn new() -> Self {
        let lines = Lines::default();
        let catcher = Catcher { lines: lines.clone(), spans: AtomicU64::new(1) };
        Self { lines, _here: tracing::subscriber::set_default(catcher) }
    }

    pub(super) fn that_say(&self, words: &str) -> Vec<Line> {
        self.lines.lock().iter().filter(|line| line.message.contains(words)).cloned().collect()
    }
}

impl Subscriber for Catcher {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pillarbox") && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        struct Visitor(Line);
        impl field::Visit for Visitor {
            fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
                let text = format!("{value:?}");
                if field.name() == "message" {
                    self.0.message = text;
                } else {
                    self.0.fields.insert(field.name(), text);
                }
            }

            fn record_str(&mut self, field: &field::Field, value: &str) {
                self.0.fields.insert(field.name(), value.to_owned());
            }
        }
        let mut visitor =
            Visitor(Line { level: *event.metadata().level(), message: String::new(), fields: BTreeMap::new() });
        event.record(&mut visitor);
        self.lines.lock().push(visitor.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

const COUNTERS: [&str; 11] = [
    name::HOT_ENQUEUED,
    name::HOT_DROPPED,
    name::DELAYED_SKIPPED,
    name::COLD_ENQUEUED,
    name::DELIVERED,
    name::FAILED,
    name::DEFERRED,
    name::DEAD,
    name::STALE_SETTLES,
    name::PURGED,
    name::LOOP_ERRORS,
];
const GAUGES: [&str; 10] = [
    name::HOT_DEPTH,
    name::COLD_DEPTH,
    name::OLDEST_LAG,
    name::PENDING,
    name::WORST_PARTITION,
    name::PARTITIONS_OWNED,
    name::BLOCKED_KEYS,
    name::LIVE_NODES,
    name::RECORDS,
    name::CIRCUIT_OPEN,
];
const HISTOGRAMS: [&str; 2] = [name::LATENCY, name::HANDLER_TIME];

/// M1: everything is there from the start, under the prefix of choice, and nothing else.
#[tokio::test(start_paused = true)]
async fn every_metric_is_registered_at_the_start_under_the_prefix() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let carrier = (async |_: Delivery| {}).with_destination("carrier");
    let outbox = stage.single().handle_every(carrier).metrics_prefix("shop.outbox").start().await.unwrap();
    let look = meter.look();
    let mut wanted: Vec<String> =
        COUNTERS.iter().chain(&GAUGES[..8]).chain(&HISTOGRAMS).map(|name| format!("shop.outbox_{name}")).collect();
    wanted.extend(Status::ALL.map(|status| format!("shop.outbox_{}.{}", name::RECORDS, status.as_str())));
    wanted.push(format!("shop.outbox_{}.carrier", name::CIRCUIT_OPEN));
    wanted.sort();
    assert_eq!(look.keys().cloned().collect::<Vec<_>>(), wanted);
    for counter in COUNTERS {
        assert!(matches!(look[&format!("shop.outbox_{counter}")], DebugValue::Counter(0)), "{counter}");
    }
    outbox.shutdown().await;
}

/// The names above are those of the contract.
#[test]
fn no_metric_of_the_contract_is_left_out_here() {
    let contract = include_str!("../../../../pillarbox-core/src/observe/mod.rs");
    let names = contract.lines().filter(|line| line.trim().starts_with("pub const ")).count();
    assert_eq!(names, COUNTERS.len() + GAUGES.len() + HISTOGRAMS.len());
}

/// M1: each counter and histogram counts what its name says.
#[tokio::test(start_paused = true)]
async fn counters_and_histograms_count_what_they_say() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let count = |name: &str| meter.count(&format!("pillarbox_{name}"));
    let scope = PurgeScope::Finished { done: Duration::ZERO, dead: None };
    let purge = PurgeOptions { scope, batch: 2, every: HOUR, ..PurgeOptions::default() };
    let outbox = stage.single().purge(purge).start().await.unwrap();
    stage.probe.fail(Which::of_key("twice"), 2);
    stage.probe.defer(Which::of_key("deferred"), 1, Duration::from_millis(5));
    stage.probe.answer(Which::of_key("dies"), 1, Err(HandlerError::msg("no").permanent()));
    write(&outbox, [event(), event(), event(), event().deliver_after(Duration::from_secs(1))]).await;
    write(&outbox, [keyed("twice"), keyed("deferred"), keyed("dies")]).await;
    stage.until_count(Status::Done, 6).await;
    stage.until_count(Status::Dead, 1).await;
    assert_eq!(count(name::HOT_ENQUEUED), 3);
    assert_eq!(count(name::DELAYED_SKIPPED), 1);
    // The delayed one, two retries, one deferral, and each keyed one at first.
    assert_eq!(count(name::COLD_ENQUEUED), 7);
    assert_eq!(count(name::DELIVERED), 6);
    assert_eq!(count(name::FAILED), 3);
    assert_eq!(count(name::DEFERRED), 1);
    assert_eq!(count(name::DEAD), 1);
    assert_eq!((count(name::HOT_DROPPED), count(name::STALE_SETTLES), count(name::LOOP_ERRORS)), (0, 0, 0));
    assert_eq!(outbox.purge().await.unwrap(), 6);
    assert_eq!(count(name::PURGED), 6);
    stage.faults().fail(Call::Page, 3, DOWN);
    pass(Duration::from_mins(1)).await;
    assert_eq!(count(name::LOOP_ERRORS), 3);
    outbox.shutdown().await;
}

/// M1: the latency is from the insert to the handler, the handler's time is its own.
#[tokio::test(start_paused = true)]
async fn histograms_measure_the_wait_and_the_handler() {
    let (stage, meter) = (Stage::new(), Meter::new());
    stage.write_cold([Stage::slow()]).await;
    pass(Duration::from_secs(10)).await;
    let slow = |_| async { tokio::time::sleep(Duration::from_secs(2)).await };
    let outbox = stage.single().route("Slow", slow).start().await.unwrap();
    stage.until_count(Status::Done, 1).await;
    let mut look = meter.look();
    let mut seconds = |name: &str| match look.remove(&format!("pillarbox_{name}")) {
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| value.round()).collect::<Vec<_>>(),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!(seconds(name::LATENCY), [10.0]);
    assert_eq!(seconds(name::HANDLER_TIME), [2.0]);
    outbox.shutdown().await;
}

/// M1: to count a full table takes a while, and who has just joined it has more urgent things to do.
#[tokio::test(start_paused = true)]
async fn a_node_delivers_before_it_counts() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let plug = stage.probe.stop(Which::any(), 1);
    stage.write_cold([event(), event()]).await;
    let outbox = stage.node().workers(1).sample_every(Duration::from_secs(30)).start().await.unwrap();
    plug.reached().await;
    pass(Duration::from_secs(2)).await;
    let level = meter.levels();
    assert_eq!((level(name::PARTITIONS_OWNED), level(name::PENDING)), (256.0, 0.0), "not counted");
    pass(Duration::from_secs(2)).await;
    assert_eq!(meter.levels()(name::PENDING), 2.0);
    plug.open();
    outbox.shutdown().await;
}

/// M1: the gauges show the outbox as it is.
#[tokio::test(start_paused = true)]
async fn gauges_show_the_outbox_as_it_is() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let second = Duration::from_secs(1);
    let builder = stage.node().workers(1).handler_timeout(HOUR).retry(RetryPolicy::never()).sample_every(second);
    let outbox = builder.start().await.unwrap();
    stage.probe.fail(Which::of_key("dies"), 1);
    write(&outbox, [keyed("dies")]).await;
    stage.until_count(Status::Dead, 1).await;
    write(&outbox, [event(), event()]).await;
    stage.until_count(Status::Done, 2).await;
    let plug = stage.probe.stop(Which::any(), 1);
    write(&outbox, [keyed("plug")]).await;
    plug.reached().await;
    stage.write_cold([keyed("a"), keyed("b"), keyed("plug"), keyed("plug")]).await;
    stage.read_through().await;
    write(&outbox, [event(), event(), event()]).await;
    pass(Duration::from_secs(20)).await;
    let level = meter.levels();
    assert_eq!((level(name::HOT_DEPTH), level(name::COLD_DEPTH)), (3.0, 2.0));
    let records = ["NEW", "RETRY", "DONE", "DEAD"].map(|status| level(&format!("{}.{status}", name::RECORDS)));
    assert_eq!(records, [8.0, 0.0, 2.0, 1.0]);
    assert_eq!(level(name::PENDING), 8.0);
    assert_eq!(level(name::BLOCKED_KEYS), 1.0, "by the dead event");
    // Those without a key lie anywhere, also there.
    assert!((3.0..=6.0).contains(&level(name::WORST_PARTITION)));
    let lag = level(name::OLDEST_LAG);
    assert!((19.0..30.0).contains(&lag), "{lag}");
    assert_eq!((level(name::PARTITIONS_OWNED), level(name::LIVE_NODES)), (256.0, 1.0));
    // Another node, which stays away from this thread's recorder.
    let joining = pillarbox_core::port::Joining {
        node: pillarbox_core::domain::NodeId::new("other"),
        ttl: HOUR,
        routes: Vec::new(),
        in_flight: 1,
    };
    stage.store.inner().join(&joining).await.unwrap();
    pass(Duration::from_secs(20)).await;
    let level = meter.levels();
    assert_eq!(level(name::LIVE_NODES), 2.0);
    // The partition in which a handler runs is given up when that has ended.
    assert!((128.0..=129.0).contains(&level(name::PARTITIONS_OWNED)));
    plug.open();
    outbox.shutdown().await;
}

/// P4, M1: outcomes that come after the lease is lost are counted, and the node asks for another at once.
#[tokio::test(start_paused = true)]
async fn outcomes_that_come_too_late_are_counted() {
    let (stage, meter) = (Stage::new(), Meter::new());
    let lease = Duration::from_mins(1);
    let outbox = stage.single().node_name("twin").lease(lease).start().await.unwrap();
    let handler = stage.probe.stop(Which::any(), 2);
    write(&outbox, [event(), event()]).await;
    handler.reached_by(2).await;
    let joining = pillarbox_core::port::Joining {
        node: pillarbox_core::domain::NodeId::new("twin"),
        ttl: HOUR,
        routes: vec![ROUTE.to_owned()],
        in_flight: 1,
    };
    stage.store.inner().join(&joining).await.unwrap();
    handler.open();
    until("the fence", || meter.count("pillarbox_stale_settles_total") == 2).await;
    let fenced = tokio::time::Instant::now();
    stage.until_count(Status::Done, 2).await;
    // It does not fight for its name, and does not stay away for ever.
    assert!(fenced.elapsed() >= lease && fenced.elapsed() < lease * 2, "a new lease after {:?}", fenced.elapsed());
    outbox.shutdown().await;
}

/// M3: a failure warns and a dead event is an error, each with the event's id; a failing loop is an error.
#[tokio::test(start_paused = true)]
async fn failures_dead_events_and_failing_loops_are_logged() {
    let (stage, tracer) = (Stage::new(), Tracer::new());
    let outbox = stage.single().start().await.unwrap();
    stage.probe.fail(Which::any(), 3);
    let id = write(&outbox, [event()]).await[0].to_string();
    stage.until_count(Status::Dead, 1).await;
    let warned = tracer.that_say("failed and is tried again");
    assert_eq!(warned.len(), 2);
    for line in warned {
        assert_eq!((line.level, line.field("event_id")), (Level::WARN, id.clone()));
    }
    let dead = tracer.that_say("the event is dead");
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].level, dead[0].field("event_id"), dead[0].field("attempts")), (Level::ERROR, id, "3".into()));
    for (call, words) in
        [(Call::Page, "reading failed"), (Call::Settle, "settling failed"), (Call::Renew, "renewing the lease failed")]
    {
        stage.faults().fail(call, 1, DOWN);
        write(&outbox, [event()]).await;
        pass(Duration::from_secs(5)).await;
        let told = tracer.that_say(words);
        assert_eq!(told.len(), 1, "{words}");
        assert_eq!(told[0].level, Level::ERROR);
        assert!(told[0].field("error").contains("scripted"), "{told:?}");
    }
    outbox.shutdown().await;
}

/// M3: a row that can't be decoded has no event, but a number; it is told with that.
#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_decoded_is_told_with_its_number() {
    let (stage, tracer) = (Stage::new(), Tracer::new());
    let ids = stage.write_cold([event()]).await;
    let seq = stage.row(ids[0]).await.seq;
    stage.store.inner().break_row(seq);
    let outbox = stage.single().start().await.unwrap();
    stage.until_count(Status::Dead, 1).await;
    let told = tracer.that_say("the event is dead");
    assert_eq!((told.len(), told[0].level, told[0].field("seq")), (1, Level::ERROR, seq.to_string()));
    outbox.shutdown().await;
}

impl Stage {
    fn slow() -> pillarbox_core::domain::EventBuilder {
        pillarbox_core::Event::builder("Slow").json(&1)
    }
}
