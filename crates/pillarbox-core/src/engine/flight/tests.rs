//! A table, a reader, workers and a settler in miniature, played at random against the node's memory: whatever
//! happens in whatever order, and also when the node dies at any point, every event is delivered, once if nothing
//! died, and in order per key.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tokio::time::{Duration, Instant};

use super::*;
use crate::{
    Event,
    domain::{Delivery, Incarnation, Key, Lease, NodeId, Record, Status, Timestamp},
    port::{Batch, Candidate, Change, Hold, HoldChange, HoldKind, Recall, Row, Taken},
};

/// Picks one of however many there are.
type Index = u8;

#[derive(Clone, Debug)]
enum Step {
    /// Writes and commits an event: of a key, or of none.
    Write(Option<u8>),
    /// Writes an event whose transaction stays open, and holds its key's lock.
    Open(Option<u8>),
    /// Writes an event that may go the hot path, in a transaction of this process.
    Reserve(Option<u8>),
    /// Writes one more into such a transaction, of the key that it has.
    More(Index),
    /// Commits an open transaction.
    Commit(Index),
    /// Rolls an open transaction back.
    Rollback(Index),
    /// Tells of a commit, if it has happened; or that nobody will tell.
    Confirm(Index),
    Abandon(Index),
    Page(usize),
    /// A page whose snapshot is older than a settle.
    PageOverSettle(usize),
    /// A page whose snapshot is older than whatever comes before its end.
    BeginPage(usize),
    /// The store asks for the rows of the page under way.
    AskPage,
    EndPage,
    /// What comes before an event of an open transaction is asked for, whatever is read meanwhile; the answer is as old as
    /// whatever comes between the look at the table and its end.
    BeginAsk,
    LookForAsk,
    EndAsk,
    FailAsk,
    Due,
    DueOverSettle,
    /// What is due, and the holds, as they were before whatever comes before the end of that.
    BeginDue,
    EndDue,
    Lookup,
    LookupOverAnswer(Index),
    Fetch,
    FailFetch,
    /// A lane is fetched as it was before whatever comes before the end of that.
    BeginFetch,
    EndFetch,
    Draw,
    Done(Index),
    Fail(Index),
    Dead(Index),
    BeginSettle,
    EndSettle,
    /// Retries come due.
    Ripen,
    /// An operator acts on a dead event.
    Replay(Index),
    Skip(Index),
    Pass(u64),
    Crash,
    /// The process lives on, and takes the partitions again.
    LoseLease,
    /// Partitions are being taken, so that no settle stores a mark; or they are no longer.
    BeginTaking,
    EndTaking,
    /// Nothing more is started; what is under way goes on.
    BeginLeave,
    Leave,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || proptest::option::weighted(0.8, 0..3u8);
    let any = any::<Index>;
    prop_oneof![
        8 => key().prop_map(Step::Write),
        2 => key().prop_map(Step::Open),
        4 => key().prop_map(Step::Reserve),
        2 => any().prop_map(Step::More),
        3 => any().prop_map(Step::Commit),
        1 => any().prop_map(Step::Rollback),
        4 => any().prop_map(Step::Confirm),
        1 => any().prop_map(Step::Abandon),
        6 => (1..6usize).prop_map(Step::Page),
        2 => (1..6usize).prop_map(Step::PageOverSettle),
        3 => (1..6usize).prop_map(Step::BeginPage),
        2 => Just(Step::AskPage),
        3 => Just(Step::EndPage),
        4 => Just(Step::BeginAsk),
        2 => Just(Step::LookForAsk),
        3 => Just(Step::EndAsk),
        1 => Just(Step::FailAsk),
        3 => Just(Step::Due),
        1 => Just(Step::DueOverSettle),
        2 => Just(Step::BeginDue),
        3 => Just(Step::EndDue),
        2 => Just(Step::Lookup),
        1 => any().prop_map(Step::LookupOverAnswer),
        4 => Just(Step::Fetch),
        1 => Just(Step::FailFetch),
        2 => Just(Step::BeginFetch),
        2 => Just(Step::EndFetch),
        8 => Just(Step::Draw),
        8 => any().prop_map(Step::Done),
        2 => any().prop_map(Step::Fail),
        2 => any().prop_map(Step::Dead),
        4 => Just(Step::BeginSettle),
        4 => Just(Step::EndSettle),
        2 => Just(Step::Ripen),
        1 => any().prop_map(Step::Replay),
        1 => any().prop_map(Step::Skip),
        2 => (0..1_000u64).prop_map(Step::Pass),
        1 => Just(Step::Crash),
        1 => Just(Step::LoseLease),
        1 => Just(Step::BeginTaking),
        1 => Just(Step::EndTaking),
        1 => Just(Step::BeginLeave),
        1 => Just(Step::Leave),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// No due time: found by the position.
    Always,
    Later,
    Now,
}

#[derive(Clone, Debug)]
struct Line {
    key: Option<Key>,
    status: Status,
    when: When,
    visible: bool,
    transaction: u64,
}

impl Line {
    fn is_pending(&self) -> bool {
        self.visible && self.status.is_pending()
    }
}

/// What the database has.
#[derive(Default)]
struct Table {
    lines: BTreeMap<Seq, Line>,
    holds: BTreeMap<Key, (HoldKind, Seq)>,
    last: i64,
    mark: Option<Seq>,
}

/// What a read of due rows under way has seen: the holds that keys may be freed by, and the rows.
struct SeenDue {
    freed: Vec<Hold>,
    lines: Vec<(Seq, Line)>,
}

struct World {
    settings: Settings,
    table: Table,
    flight: Flight,
    now: Instant,
    epoch: i64,
    settling: Option<Batch>,
    running: Vec<Job>,
    noted: Vec<Noted>,
    /// How many were begun, and those that this process has begun and knows of.
    transactions: u64,
    own: BTreeSet<u64>,
    paging: Option<Paging>,
    /// A lane that is being fetched, what lies beyond, and what was found.
    fetching: Option<(Fetch, Option<Seq>, Vec<Row>)>,
    due: Option<SeenDue>,
    /// A question, and what was found once the table was looked at.
    asking: Option<(Ask, Option<Vec<Seq>>)>,
    /// As the memory knows it: the answers so far, or what the table has after a crash.
    done: BTreeSet<Seq>,
    failed: BTreeSet<Seq>,
    skipped: BTreeSet<Seq>,
    /// The last number of each key that was delivered for the first time.
    reached: BTreeMap<Key, Seq>,
    seen: BTreeSet<Seq>,
}

/// What the writer holds on to until it hears of the end of the transaction.
struct Noted {
    seq: Seq,
    of_key: Option<OfKey>,
    job: Option<Job>,
}

/// A page under way.
struct Paging {
    after: Position,
    mark: Seq,
    limit: usize,
    snapshot: Vec<(Seq, Line)>,
    /// What was picked, and whether that is all: once the rows were asked for.
    picked: Option<(Vec<Row>, bool)>,
}

fn partition(key: Option<&Key>) -> Partition {
    key.map_or(Partition(0), Partition::of_key)
}

impl World {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: Settings) -> Self {
        let mut world = Self {
            table: Table::default(),
            flight: Flight::new(&settings),
            settings,
            now: Instant::now(),
            epoch: 0,
            settling: None,
            running: Vec::new(),
            noted: Vec::new(),
            transactions: 0,
            own: BTreeSet::new(),
            paging: None,
            fetching: None,
            due: None,
            asking: None,
            done: BTreeSet::new(),
            failed: BTreeSet::new(),
            skipped: BTreeSet::new(),
            reached: BTreeMap::new(),
            seen: BTreeSet::new(),
        };
        world.join();
        world
    }

    /// A new owner, which knows what the table has and nothing else.
    fn join(&mut self) {
        self.flight = Flight::new(&self.settings);
        (0..10).for_each(|_| self.flight.set_idle(true));
        self.paging = None;
        self.fetching = None;
        self.due = None;
        self.asking = None;
        // It knows of none, and writes into none.
        self.own.clear();
        self.noted.retain(|noted| noted.of_key.is_none());
        self.take_over();
    }

    fn take_over(&mut self) {
        self.epoch += 1;
        self.settling = None;
        self.running.clear();
        let lines = || self.table.lines.iter();
        self.done = lines().filter(|(_, line)| line.status == Status::Done).map(|(seq, _)| *seq).collect();
        let failed = |line: &Line| matches!(line.status, Status::Retry | Status::Dead);
        self.failed = lines().filter(|(_, line)| failed(line)).map(|(seq, _)| *seq).collect();
        let lease = Lease { node: NodeId::new("node"), incarnation: Incarnation(self.epoch) };
        self.flight.owned.renewed(&lease, self.now + settle::FAR * 1_000);
        let taken: Vec<Taken> = Partition::all()
            .map(|partition| Taken {
                partition,
                epoch: Epoch(self.epoch),
                mark: self.table.mark.unwrap_or(Seq(0)),
                suspects: 0,
            })
            .collect();
        let failing = lines().filter(|(_, line)| line.status == Status::Retry);
        let recall = Recall {
            holds: self.table.holds.iter().map(|(key, held)| hold(key, *held)).collect(),
            failing: failing
                .filter_map(|(seq, line)| Some((partition(line.key.as_ref()), line.key.clone()?, *seq)))
                .collect(),
            suspects: Vec::new(),
        };
        self.flight.owned.gain(taken.clone());
        self.flight.activate(&taken, &recall, true, self.now);
    }

    fn play(&mut self, step: &Step) {
        match step {
            Step::Write(key) => {
                self.write(*key, true);
            }
            Step::Open(key) => {
                self.write(*key, false);
            }
            Step::Reserve(key) => {
                if let Some(seq) = self.write(*key, false) {
                    self.own.insert(self.table.lines[&seq].transaction);
                    self.note(seq);
                }
            }
            Step::More(which) => {
                let is_own = |(_, line): &(&Seq, &Line)| !line.visible && self.own.contains(&line.transaction);
                let lines = self.table.lines.iter().filter(is_own).map(|(_, line)| line.clone()).collect::<Vec<_>>();
                if let Some(line) = which_of(*which, &lines) {
                    let seq = self.insert(line);
                    self.note(seq);
                }
            }
            Step::Commit(which) => {
                if let Some(seq) = which_of(*which, &self.open()) {
                    self.of_transaction_of(seq).into_iter().for_each(|seq| self.line(seq).visible = true);
                }
            }
            Step::Rollback(which) => {
                if let Some(seq) = which_of(*which, &self.open()) {
                    for seq in self.of_transaction_of(seq) {
                        self.table.lines.remove(&seq);
                        let of_key =
                            self.noted.extract_if(.., |noted| noted.seq == seq).filter_map(|noted| noted.of_key);
                        self.flight.rolled_back([seq], &of_key.collect::<Vec<_>>());
                    }
                }
            }
            Step::Confirm(which) => {
                let committed = |noted: &Noted| self.table.lines[&noted.seq].visible;
                let of: Vec<usize> = (0..self.noted.len()).filter(|at| committed(&self.noted[*at])).collect();
                if let Some(at) = which_of(*which, &of) {
                    let noted = self.noted.remove(at);
                    self.flight.confirm(noted.job.into_iter().collect(), noted.of_key.as_slice(), self.now);
                }
            }
            Step::Abandon(which) => {
                if let Some(at) = which_of(*which, &(0..self.noted.len()).collect::<Vec<_>>()) {
                    let noted = self.noted.remove(at);
                    self.flight.abandon([noted.seq], noted.of_key.as_slice());
                }
            }
            Step::Page(limit) => self.page(*limit, false),
            Step::PageOverSettle(limit) => self.page(*limit, true),
            Step::BeginPage(limit) => self.begin_page(*limit),
            Step::AskPage => self.ask_page(),
            Step::EndPage => self.end_page(),
            Step::BeginAsk => self.begin_ask(),
            Step::LookForAsk => self.look_for_ask(),
            Step::EndAsk => self.end_ask(),
            Step::FailAsk => {
                if let Some((ask, _)) = self.asking.take() {
                    self.flight.asked(&ask, None, self.now);
                }
            }
            Step::Due => self.due(&[]),
            Step::DueOverSettle => self.due(&SETTLE),
            Step::BeginDue => self.begin_due(),
            Step::EndDue => self.end_due(),
            Step::Lookup => self.look_up(&[]),
            Step::LookupOverAnswer(which) => self.look_up(&[Step::EndAsk, Step::Confirm(*which)]),
            Step::Fetch => self.fetch(),
            Step::BeginFetch => {
                self.end_read();
                if let Some(fetch) = self.flight.lanes_to_fetch(1).pop() {
                    self.begin_fetch(fetch);
                }
            }
            Step::EndFetch => self.end_fetch(),
            Step::FailFetch => {
                for fetch in self.flight.lanes_to_fetch(9) {
                    self.flight.lane_fetch_failed(fetch.key);
                }
            }
            Step::Draw => {
                let (job, _) = self.flight.draw(self.now);
                if let Some(job) = job {
                    self.delivered(&job);
                    self.running.push(job);
                }
            }
            Step::Done(which) => self.answer(*which, Change::Done, Then::Next),
            Step::Fail(which) => {
                let change =
                    Change::Retry { attempts: 1, after: Duration::from_millis(1), error: None, progress: None };
                self.answer(*which, change, Then::Fail);
            }
            Step::Dead(which) => {
                let change = Change::Dead { attempts: 1, error: "dead".into(), progress: None, hold: true };
                self.answer(*which, change, Then::Hold);
            }
            Step::BeginSettle => {
                if self.settling.is_none() && (self.flight.unsettled() > 0 || self.flight.has_hold_changes()) {
                    let batch = self.flight.take_batch(self.now);
                    self.apply(&batch);
                    self.settling = Some(batch);
                }
            }
            Step::EndSettle => {
                if let Some(batch) = self.settling.take() {
                    self.flight.settled(&batch, self.now);
                }
            }
            Step::Ripen => {
                let later = self.table.lines.values_mut().filter(|line| line.when == When::Later);
                later.for_each(|line| line.when = When::Now);
            }
            Step::Replay(which) => {
                if let Some(seq) = which_of(*which, &self.dead()) {
                    let line = self.line(seq);
                    (line.status, line.when) = (Status::New, When::Now);
                }
            }
            Step::Skip(which) => {
                let held = |seq: &Seq| self.table.holds.values().any(|held| *held == (HoldKind::DeadHead, *seq));
                let heads: Vec<Seq> = self.dead().into_iter().filter(held).collect();
                if let Some(seq) = which_of(*which, &heads) {
                    let held = self.table.holds.values_mut().find(|held| held.1 == seq).expect("it is held");
                    held.0 = HoldKind::Overflow;
                    self.skipped.insert(seq);
                }
            }
            Step::Pass(millis) => self.now += Duration::from_millis(*millis),
            Step::Crash => self.join(),
            Step::LoseLease => {
                self.flight.lose_everything();
                // The reader takes nothing new before it has dealt with its page.
                self.end_read();
                self.take_over();
            }
            Step::BeginTaking => {
                self.flight.begin_taking();
            }
            Step::EndTaking => self.flight.end_taking(Vec::new()),
            Step::BeginLeave => self.flight.owned.known().iter().for_each(|partition| self.flight.leave(partition)),
            Step::Leave => {
                // A settle under way is waited for, or fails: here it is in effect and not known to be.
                let known = self.flight.owned.known();
                let (_, mark) = self.flight.give_up(known, 1);
                self.table.mark = Some(mark);
                self.join();
            }
        }
        self.flight.lanes.check();
    }

    fn write(&mut self, key: Option<u8>, visible: bool) -> Option<Seq> {
        let key = key.map(|key| Key::from(format!("k{key}")));
        // Writers of one key hold its lock until they have committed.
        if key.is_some() && self.table.lines.values().any(|line| !line.visible && line.key == key) {
            return None;
        }
        self.transactions += 1;
        let transaction = self.transactions;
        Some(self.insert(Line { key, status: Status::New, when: When::Always, visible, transaction }))
    }

    fn insert(&mut self, line: Line) -> Seq {
        self.table.last += 1;
        let seq = Seq(self.table.last);
        self.table.lines.insert(seq, line);
        seq
    }

    /// What the writer does about a row that it has inserted.
    fn note(&mut self, seq: Seq) {
        let line = self.table.lines[&seq].clone();
        let record = record(seq, &line);
        let (mut of_key, mut job) = (None, None);
        if let Some(key) = line.key {
            let is_expected = self.flight.expect(&key, record, self.now);
            of_key = Some(OfKey { key, seq, is_expected });
        } else {
            let epoch = self.flight.reserve(seq, record.partition, self.now + Duration::from_secs(2));
            job = epoch.map(|epoch| Job { delivery: Delivery::new(record, epoch), written: self.now });
        }
        if job.is_some() || of_key.is_some() {
            self.noted.push(Noted { seq, of_key, job });
        }
    }

    fn of_transaction_of(&self, seq: Seq) -> Vec<Seq> {
        let transaction = self.table.lines[&seq].transaction;
        let lines = self.table.lines.iter().filter(|(_, line)| line.transaction == transaction);
        lines.map(|(seq, _)| *seq).collect()
    }

    fn page(&mut self, limit: usize, over_settle: bool) {
        self.begin_page(limit);
        if over_settle {
            SETTLE.iter().for_each(|step| self.play(step));
        }
        self.end_page();
    }

    fn begin_page(&mut self, limit: usize) {
        self.end_read();
        let limit = limit.min(self.flight.room());
        if limit == 0 || self.flight.owned.active().is_empty() {
            return;
        }
        self.flight.begin_page();
        let after = self.flight.position().clone();
        let mark = self.open().first().map_or(Seq(self.table.last), |seq| Seq(seq.0 - 1));
        let fresh = |line: &Line| line.visible && line.status == Status::New && line.when == When::Always;
        let above = self.table.lines.range(Seq(after.seq.0 + 1)..).filter(|(_, line)| fresh(line));
        let snapshot: Vec<(Seq, Line)> = above.map(|(seq, line)| (*seq, line.clone())).collect();
        self.paging = Some(Paging { after, mark, limit, snapshot, picked: None });
    }

    fn ask_page(&mut self) {
        let Some(mut paging) = self.paging.take() else { return };
        if paging.picked.is_none() {
            let (mut rows, mut whole) = (Vec::new(), true);
            for (seq, line) in &paging.snapshot {
                if rows.len() >= paging.limit {
                    paging.mark = paging.mark.min(Seq(seq.0 - 1));
                    whole = false;
                    break;
                }
                if self.flight.wants_of_page(candidate(*seq, line), self.now) {
                    rows.push(Row::Event(record(*seq, line)));
                }
            }
            paging.picked = Some((rows, whole));
        }
        self.paging = Some(paging);
    }

    /// The reader does one thing at a time: whatever it does ends what it did.
    fn end_read(&mut self) {
        self.end_page();
        self.end_fetch();
        self.end_due();
    }

    /// The scout asks one question at a time, whatever the reader does.
    fn begin_ask(&mut self) {
        self.end_ask();
        if let Before::Ask(ask) = self.flight.before_expected() {
            self.asking = Some((ask, None));
        }
    }

    fn look_for_ask(&mut self) {
        let Some((ask, found @ None)) = &mut self.asking else { return };
        let of_key = |line: &Line| line.key.as_ref() == Some(&ask.key) && line.is_pending() && line.when != When::Later;
        let rows = self.table.lines.range(ask.from..).filter(|(_, line)| of_key(line));
        *found = Some(rows.map(|(seq, _)| *seq).take(Ask::ROWS).collect());
    }

    fn end_ask(&mut self) {
        self.look_for_ask();
        if let Some((ask, found)) = self.asking.take() {
            self.flight.asked(&ask, found.as_deref(), self.now);
        }
    }

    fn end_page(&mut self) {
        self.ask_page();
        let Some(Paging { after, mark, picked: Some((rows, whole)), .. }) = self.paging.take() else { return };
        let rows = self.flight.with_shown(rows);
        self.place(rows);
        if *self.flight.position() == after {
            self.flight.advance(Position::at(mark.max(after.seq)));
        }
        self.flight.page_is_read(whole, self.now);
        self.flight.end_read();
    }

    fn due(&mut self, over: &[Step]) {
        self.begin_due();
        over.iter().for_each(|step| self.play(step));
        self.end_due();
    }

    fn begin_due(&mut self) {
        self.end_read();
        self.flight.begin_read_due();
        let freed = self.table.holds.iter().filter(|(_, held)| held.0 == HoldKind::Overflow);
        let freed = freed.map(|(key, held)| hold(key, *held)).collect();
        let due = self.table.lines.iter().filter(|(_, line)| line.is_pending() && line.when == When::Now);
        self.due = Some(SeenDue { freed, lines: due.map(|(seq, line)| (*seq, line.clone())).collect() });
    }

    fn end_due(&mut self) {
        let Some(SeenDue { freed, lines }) = self.due.take() else { return };
        let wanted = |(seq, line): &(Seq, Line)| self.flight.wants(candidate(*seq, line), self.now);
        let due = lines.into_iter().filter(wanted).collect::<Vec<_>>();
        self.flight.freed(&freed, self.now);
        self.place(due.iter().map(|(seq, line)| Row::Event(record(*seq, line))).collect());
        self.flight.end_read();
    }

    fn look_up(&mut self, over: &[Step]) {
        self.end_read();
        let (seqs, ..) = self.flight.lookups(self.now, 2);
        self.flight.begin_read();
        let rows = seqs.iter().filter_map(|seq| {
            let line = self.table.lines.get(seq)?;
            (line.is_pending() && line.when != When::Later).then(|| Row::Event(record(*seq, line)))
        });
        let rows: Vec<Row> = rows.collect();
        let found: Vec<_> = rows.iter().map(|row| (row.seq(), row.partition())).collect();
        over.iter().for_each(|step| self.play(step));
        self.place(rows);
        self.flight.looked_up(&seqs, &found);
        self.flight.end_read();
    }

    fn fetch(&mut self) {
        self.end_read();
        for fetch in self.flight.lanes_to_fetch(9) {
            self.begin_fetch(fetch);
            self.end_fetch();
        }
    }

    fn begin_fetch(&mut self, fetch: Fetch) {
        const LIMIT: usize = 2;
        self.flight.begin_read();
        let of_key = |line: &Line| line.key.as_ref() == Some(&fetch.key) && line.is_pending();
        let rows = self.table.lines.range(fetch.from..).filter(|(_, line)| of_key(line) && line.when != When::Later);
        let rows: Vec<Row> = rows.take(LIMIT).map(|(seq, line)| Row::Event(record(*seq, line))).collect();
        let beyond = rows.last().filter(|_| rows.len() >= LIMIT).map(|row| Seq(row.seq().0 + 1));
        self.fetching = Some((fetch, beyond, rows));
    }

    fn end_fetch(&mut self) {
        if let Some((fetch, beyond, rows)) = self.fetching.take() {
            self.flight.place_lane(&fetch, beyond, rows, self.now, Timestamp::default(), true);
            self.flight.end_read();
        }
    }

    fn place(&mut self, rows: Vec<Row>) {
        self.flight.place(rows, self.now, Timestamp::default(), true);
    }

    fn delivered(&mut self, job: &Job) {
        let seq = job.delivery.seq();
        assert!(!self.done.contains(&seq), "{seq} is delivered again");
        assert!(self.table.lines[&seq].visible, "{seq} is not committed");
        let Some(key) = job.delivery.event().key() else {
            let twice = self.running.iter().any(|other| other.delivery.seq() == seq);
            assert!(!twice, "{seq} runs twice");
            return;
        };
        let overlap = self.running.iter().find(|other| other.delivery.event().key() == Some(key));
        assert!(overlap.is_none(), "{seq} and {} of {key} run at once", overlap.expect("found").delivery.seq());
        if self.seen.insert(seq) {
            let before = self.reached.insert(key.clone(), seq);
            assert!(before.is_none_or(|before| before < seq), "{key}: {seq} after {before:?}");
            let lower = self.table.lines.range(..seq).filter(|(_, line)| line.key.as_ref() == Some(key));
            let failed = lower.map(|(seq, _)| seq).find(|seq| self.failed.contains(seq) && !self.skipped.contains(seq));
            assert!(failed.is_none(), "{key}: {seq} passed the failed {}", failed.expect("found"));
        }
    }

    fn answer(&mut self, which: Index, change: Change, then: Then) {
        let Some(at) = which_of(which, &(0..self.running.len()).collect::<Vec<_>>()) else {
            return;
        };
        let job = self.running.remove(at);
        let seq = job.delivery.seq();
        self.failed.remove(&seq);
        match change {
            Change::Done => self.done.insert(seq),
            Change::Retry { .. } | Change::Dead { .. } => self.failed.insert(seq),
            _ => false,
        };
        assert!(self.flight.answer(&job.delivery, End { change, then }, self.now).is_some());
    }

    fn apply(&mut self, batch: &Batch) {
        assert!(batch.outcomes.is_sorted_by_key(|outcome| outcome.seq));
        for outcome in &batch.outcomes {
            let Some(line) = self.table.lines.get_mut(&outcome.seq).filter(|line| line.status.is_pending()) else {
                continue;
            };
            match &outcome.change {
                Change::Done | Change::Delete => line.status = Status::Done,
                Change::Retry { .. } => (line.status, line.when) = (Status::Retry, When::Later),
                Change::Dead { .. } => {
                    line.status = Status::Dead;
                    if let Some(key) = line.key.clone() {
                        self.hold_by_head(key, outcome.seq);
                    }
                }
                Change::Interrupted => {}
            }
        }
        for change in &batch.holds {
            match change {
                HoldChange::Set(hold) => {
                    if !matches!(self.table.holds.get(&hold.key), Some((HoldKind::DeadHead, _))) {
                        self.table.holds.insert(hold.key.clone(), (hold.kind, hold.from));
                    }
                }
                HoldChange::Clear { key, .. } => {
                    self.table.holds.remove(key);
                }
            }
        }
        if let Some(mark) = batch.mark {
            self.table.mark = Some(mark);
        }
    }

    fn hold_by_head(&mut self, key: Key, seq: Seq) {
        if let Some((HoldKind::DeadHead, head)) = self.table.holds.get(&key) {
            let still_dead = self.table.lines.get(head).is_some_and(|line| line.status == Status::Dead);
            if *head < seq && still_dead {
                return;
            }
        }
        self.table.holds.insert(key, (HoldKind::DeadHead, seq));
    }

    fn line(&mut self, seq: Seq) -> &mut Line {
        self.table.lines.get_mut(&seq).expect("the row is there")
    }

    fn open(&self) -> Vec<Seq> {
        self.table.lines.iter().filter(|(_, line)| !line.visible).map(|(seq, _)| *seq).collect()
    }

    fn dead(&self) -> Vec<Seq> {
        self.table.lines.iter().filter(|(_, line)| line.status == Status::Dead).map(|(seq, _)| *seq).collect()
    }

    /// Everything goes well from now on, for long enough.
    fn calm(&mut self) {
        let first = 0;
        if self.flight.owned.active().is_empty() {
            self.play(&Step::Leave);
        }
        self.play(&Step::EndTaking);
        for seq in self.open() {
            self.line(seq).visible = true;
        }
        for _ in 0..self.table.lines.len() * 4 + 20 {
            let pass = [Step::Confirm(first), Step::Ripen, Step::Due, Step::Lookup, Step::Fetch, Step::Page(5)];
            pass.iter().for_each(|step| self.play(step));
            for _ in 0..8 {
                self.play(&Step::Draw);
                self.play(&Step::Done(first));
            }
            [Step::EndSettle, Step::BeginSettle, Step::EndSettle, Step::Pass(700)]
                .iter()
                .for_each(|step| self.play(step));
        }
    }

    fn waiting(&self) -> Vec<Seq> {
        self.table.lines.iter().filter(|(_, line)| line.is_pending()).map(|(seq, _)| *seq).collect()
    }
}

const SETTLE: [Step; 3] = [Step::EndSettle, Step::BeginSettle, Step::EndSettle];

fn settings() -> Settings {
    Settings { hot_capacity: 2, cold_capacity: 5, lane_capacity: 2, settle_batch: 4, ..Settings::default() }
}

fn hold(key: &Key, (kind, from): (HoldKind, Seq)) -> Hold {
    Hold { partition: partition(Some(key)), key: key.clone(), kind, from }
}

fn candidate(seq: Seq, line: &Line) -> Candidate<'_> {
    Candidate { seq, partition: partition(line.key.as_ref()), key: line.key.as_ref().map(Key::as_str) }
}

fn record(seq: Seq, line: &Line) -> Record {
    let mut event = Event::builder("E").json(&1);
    if let Some(key) = &line.key {
        event = event.key(key.clone());
    }
    Record {
        seq,
        partition: partition(line.key.as_ref()),
        event: event.build().expect("a valid event"),
        attempts: 0,
        starts: 0,
        progress: None,
        created_at: Timestamp::default(),
    }
}

fn which_of<T: Clone>(which: Index, of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| of[usize::from(which) % of.len()].clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_whatever_happens(
        steps in proptest::collection::vec(step(), 1..150),
        ends_in_crash: bool,
    ) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.play(step));
        if ends_in_crash {
            world.join();
        }
        world.calm();
        // Only what waits behind a dead head waits.
        for seq in world.waiting() {
            let key = world.table.lines[&seq].key.clone();
            let held = key.as_ref().and_then(|key| world.table.holds.get(key));
            prop_assert!(matches!(held, Some((HoldKind::DeadHead, _))), "{seq} of {key:?} is forgotten: {held:?}");
        }
        // And an operator can free all of it, though it may take a replay for each head.
        for _ in 0..=world.table.lines.len() {
            for seq in world.dead() {
                let line = world.line(seq);
                (line.status, line.when) = (Status::New, When::Now);
            }
            if world.waiting().is_empty() {
                break;
            }
            world.calm();
        }
        prop_assert_eq!(world.waiting(), Vec::<Seq>::new());
    }
}

/// A key with four events. The first has failed once, and the stored mark has passed the others, which a hold covers;
/// now the first is done and the next two are in memory again.
fn held() -> World {
    let mut world = World::new();
    (0..4).for_each(|_| world.play(&Step::Write(Some(0))));
    for step in [Step::Page(5), Step::Draw, Step::Fail(0), Step::Pass(600), Step::BeginSettle, Step::EndSettle] {
        world.play(&step);
    }
    assert_eq!((world.table.holds.len(), world.table.mark), (1, Some(Seq(4))));
    [Step::Ripen, Step::Due, Step::Draw, Step::Done(0), Step::Fetch].iter().for_each(|step| world.play(step));
    world
}

/// P1, decision 6: found by the simulation. The hold of a key that has caught up, but whose events are not settled, is
/// not removed by a settle that can't lower the stored mark.
#[test]
fn a_hold_stays_until_what_it_covers_is_settled() {
    let mut world = held();
    for step in [Step::Draw, Step::Done(0), Step::Fetch, Step::BeginTaking, Step::BeginSettle, Step::EndSettle] {
        world.play(&step);
    }
    world.play(&Step::Crash);
    world.calm();
    assert_eq!(world.waiting(), []);
    assert!(world.table.holds.is_empty());
}

/// P1, decisions 5 and 6: found by the simulation. A hold that a read still shows, and a settle is about to remove,
/// covers nothing.
#[test]
fn a_hold_that_is_being_removed_is_not_taken_for_one_that_was_freed() {
    for over_settle in [Step::Due, Step::DueOverSettle] {
        let mut world = held();
        let to_the_end = [Step::Draw, Step::Done(0), Step::Fetch, Step::Draw, Step::Done(0), Step::Draw, Step::Done(0)];
        to_the_end.iter().for_each(|step| world.play(step));
        for step in [over_settle, Step::Write(Some(0)), Step::Page(5), Step::BeginSettle, Step::EndSettle, Step::Crash]
        {
            world.play(&step);
        }
        world.calm();
        assert_eq!(world.waiting(), []);
    }
}

/// O1, O9: found by the test with a million of a key. What is due is read with the hold that a key has because it overflows;
/// meanwhile its head dies, and holds it. That the table still shows the other hold does not mean that somebody freed the key.
#[test]
fn a_key_whose_head_dies_while_its_hold_is_read_is_not_taken_for_one_that_was_freed() {
    let die = [Step::Draw, Step::Dead(0)];
    let [end, begin, _] = SETTLE;
    let died_unsettled = [die[0].clone(), die[1].clone(), begin.clone()];
    let before: [(&[Step], &[Step]); 5] = [
        (&[], &die),
        (&die, &[]),
        (&die, std::slice::from_ref(&begin)),
        (&died_unsettled, &[]),
        (&died_unsettled, std::slice::from_ref(&end)),
    ];
    for (before, during) in before {
        let mut world = held();
        before.iter().for_each(|step| world.play(step));
        world.play(&Step::BeginDue);
        during.iter().for_each(|step| world.play(step));
        [Step::EndDue, Step::Fetch, Step::Draw].iter().for_each(|step| world.play(step));
        assert!(world.running.is_empty(), "{before:?}, {during:?}: {:?} passed the dead head", world.running);
        world.calm();
        assert_eq!((world.dead(), world.waiting()), (vec![Seq(2)], vec![Seq(3), Seq(4)]));
        // And when somebody does, it goes on.
        world.play(&Step::Skip(0));
        world.calm();
        assert_eq!(world.waiting(), []);
    }
}

fn only(partition: Partition) -> PartitionSet {
    std::iter::once(partition).collect()
}

/// P1, decision 6: found by the simulation. A lane runs dry while its partition is being given up; what is fetched for
/// it is not delivered here, and must be found by the next owner.
#[test]
fn followers_that_are_fetched_for_a_leaving_partition_are_handed_on() {
    let mut world = World::new();
    let seqs: Vec<Seq> = (0..4).map(|_| world.write(Some(0), true).unwrap()).collect();
    world.page(5, false);
    // The first runs, two are parked, and the last one lies beyond.
    for step in [Step::Draw, Step::Done(0), Step::Draw, Step::Done(0), Step::Draw] {
        world.play(&step);
    }
    [Step::BeginLeave, Step::Done(0), Step::BeginSettle, Step::EndSettle, Step::Fetch]
        .iter()
        .for_each(|s| world.play(s));
    let of_key = partition(world.table.lines[&seqs[0]].key.as_ref());
    assert!(world.flight.is_quiet(of_key));
    let (_, mark) = world.flight.give_up(only(of_key), 0);
    assert!(mark < seqs[3], "{mark} is above what was not delivered");
}

/// P1: the same for a row that was reserved, passed over, and never confirmed.
#[test]
fn a_reservation_that_is_looked_up_in_a_leaving_partition_is_handed_on() {
    let mut world = World::new();
    for step in [Step::Reserve(None), Step::Commit(0), Step::Page(5), Step::Abandon(0), Step::BeginLeave, Step::Lookup]
    {
        world.play(&step);
    }
    let (_, mark) = world.flight.give_up(only(Partition(0)), 0);
    assert_eq!(mark, Seq(0));
}

/// P1: found by the simulation. A node that stops takes a partition which its reader no longer sees, and has to give up
/// everything before its last settle is durable.
#[test]
fn what_was_taken_and_never_read_is_handed_on_from_its_own_mark() {
    let mut world = World::new();
    (0..2).for_each(|_| world.play(&Step::Write(None)));
    for step in [Step::Page(5), Step::Draw, Step::Done(0), Step::BeginSettle, Step::EndSettle, Step::Draw] {
        world.play(&step);
    }
    assert_eq!(world.table.mark, Some(Seq(1)));
    world.flight.end_taking(vec![Taken { partition: Partition(9), epoch: Epoch(7), mark: Seq(0), suspects: 0 }]);
    let (_, mark) = world.flight.give_up(world.flight.owned.known(), 0);
    assert_eq!(mark, Seq(0));
}

/// O1, decision 6: found by the simulation. An event that was delayed comes due while earlier ones of its key are not
/// read yet, and its lane is full: they are not overtaken by what is fetched with it, here or by a next owner.
#[test]
fn what_is_due_ahead_of_the_pages_takes_nobody_past_those_between() {
    for crash in [false, true] {
        let mut world = World::new();
        (0..3).for_each(|_| world.play(&Step::Write(Some(0))));
        [Step::Page(5), Step::Draw].iter().for_each(|step| world.play(step));
        // 1 runs, 2 and 3 are parked; 4 is not read, 5 was delayed and is due, 6 follows.
        (0..3).for_each(|_| world.play(&Step::Write(Some(0))));
        world.line(Seq(5)).when = When::Now;
        [Step::Due, Step::Pass(600)].iter().for_each(|step| world.play(step));
        for _ in 0..2 {
            [Step::Done(0), Step::Draw].iter().for_each(|step| world.play(step));
        }
        [Step::Done(0), Step::BeginSettle, Step::EndSettle].iter().for_each(|step| world.play(step));
        if crash {
            world.play(&Step::Crash);
        }
        world.play(&Step::Fetch);
        world.calm();
        assert_eq!(world.waiting(), []);
    }
}

/// P1, O1: found by the simulation. While a lane is fetched its head fails, and sends back the followers in memory: they
/// lie before what was fetched.
#[test]
fn followers_that_a_failed_head_sends_back_during_a_fetch_are_not_forgotten() {
    let mut world = World::with(Settings { lane_capacity: 4, cold_capacity: 20, ..settings() });
    (0..7).for_each(|_| world.play(&Step::Write(Some(0))));
    world.play(&Step::Page(8));
    for _ in 0..3 {
        [Step::Draw, Step::Done(0)].iter().for_each(|step| world.play(step));
    }
    // 4 runs, 5 is parked, 6 and 7 lie beyond.
    world.play(&Step::Draw);
    let fetches = world.flight.lanes_to_fetch(9);
    assert_eq!(fetches.iter().map(|fetch| fetch.from).collect::<Vec<_>>(), [Seq(6)]);
    world.flight.begin_read();
    world.play(&Step::Fail(0));
    let rows = [6, 7].map(|seq| Row::Event(record(Seq(seq), &world.table.lines[&Seq(seq)]))).to_vec();
    world.flight.place_lane(&fetches[0], None, rows, world.now, Timestamp::default(), true);
    world.flight.end_read();
    world.calm();
    assert_eq!(world.waiting(), []);
}

/// D15: found by the simulation. An open transaction keeps the position back, so each page meets the same followers
/// again. With no room to park them, the reader must not take their lane for one to fetch: it would go round without end.
#[test]
fn a_lane_is_not_fetched_for_followers_that_no_room_is_left_for() {
    let mut world = World::with(Settings { lane_capacity: 4, cold_capacity: 4, ..settings() });
    world.play(&Step::Open(None));
    (0..5).for_each(|_| world.play(&Step::Write(Some(0))));
    (0..2).for_each(|_| world.play(&Step::Write(Some(1))));
    // At last both heads are ready, four of the first key are parked, and the other of the second key lies beyond.
    for _ in 0..5 {
        [Step::Fetch, Step::Page(8)].iter().for_each(|step| world.play(step));
    }
    assert!(!world.flight.has_lanes_to_fetch());
    world.play(&Step::Commit(0));
    world.calm();
    assert_eq!(world.waiting(), []);
}

/// D2: a slow key with followers, while others write all that the other workers do: what was read has its turn, so something
/// must be read.
#[test]
fn followers_take_up_no_room_while_workers_have_hot_events_alone() {
    let mut world = World::with(Settings { cold_capacity: 8, page_size: 2, lane_capacity: 8, ..settings() });
    (0..10).for_each(|_| world.flight.set_idle(false));
    for _ in 0..8 {
        world.write(Some(0), true);
    }
    world.page(8, false);
    assert_eq!(world.flight.room(), 0, "the head waits for a worker");
    let (head, signals) = world.flight.draw(world.now);
    assert!(head.is_some() && signals.reader);
    assert_eq!(world.flight.room(), 8);
}

/// To read on while nobody waits for work would only fill the lanes, until keys overflow and are fetched one by one.
#[test]
fn followers_take_up_room_unless_a_worker_waits() {
    let mut world = World::with(Settings { cold_capacity: 8, page_size: 2, lane_capacity: 4, ..settings() });
    (0..10).for_each(|_| world.flight.set_idle(false));
    for _ in 0..4 {
        world.write(Some(0), true);
        world.write(Some(1), true);
    }
    world.page(8, false);
    // Two heads, and three behind each.
    assert_eq!(world.flight.room(), 0);
    assert!(!world.flight.has_room_again());
    // Two are for the heads. The third has none of these keys to wait for.
    (0..2).for_each(|_| world.flight.set_idle(true));
    assert!(!world.flight.has_room_again());
    world.flight.set_idle(true);
    assert!(world.flight.has_room_again());
    assert_eq!(world.flight.room(), 6);

    (0..3).for_each(|_| world.flight.set_idle(false));
    assert_eq!(world.flight.room(), 0);
    let woken: Vec<bool> = (0..6)
        .map(|_| {
            let (job, signals) = world.flight.draw(world.now);
            let end = End { change: Change::Done, then: Then::Next };
            world.flight.answer(&job.unwrap().delivery, end, world.now).unwrap();
            signals.reader
        })
        .collect();
    // Once, when half of them are gone.
    assert_eq!(woken, [false, false, false, true, false, false]);
}

/// O9, P7: a node without outcomes stores how far it has read, so that a next owner does not read it all again; if it dies
/// just before that, the next owner does, and loses nothing.
#[test]
fn a_node_without_outcomes_stores_a_mark_that_lies_far_behind() {
    let mut world = World::new();
    assert!(!world.flight.is_far_ahead(world.now), "nothing was read");
    // What others have delivered, and removed.
    world.table.last = 1_500;
    world.play(&Step::Page(5));
    assert!(world.flight.is_far_ahead(world.now));
    world.play(&Step::Crash);
    assert_eq!(world.flight.position().seq, Seq(0), "it died before: read again from the beginning");

    world.play(&Step::Page(5));
    let batch = world.flight.take_batch(world.now);
    assert_eq!((batch.outcomes.len(), batch.mark), (0, Some(Seq(1_500))));
    world.apply(&batch);
    world.flight.settled(&batch, world.now);
    assert!(!world.flight.is_far_ahead(world.now), "it is stored");
    world.play(&Step::Crash);
    assert_eq!(world.flight.position().seq, Seq(1_500), "it died after: nothing is read again");
}

/// O1: the commit is visible before its writer knows of it. The row is placed from memory, and so is what follows it; no
/// worker gets either before the writer's word.
#[test]
fn what_a_page_shows_early_waits_for_its_writer() {
    let mut world = World::new();
    for step in [Step::Reserve(Some(0)), Step::Commit(0), Step::Write(Some(0)), Step::Page(5), Step::Draw] {
        world.play(&step);
    }
    assert!(world.running.is_empty());
    [Step::Confirm(0), Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running.iter().map(|job| job.delivery.seq()).collect::<Vec<_>>(), [Seq(1)]);
    [Step::Done(0), Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running.iter().map(|job| job.delivery.seq()).collect::<Vec<_>>(), [Seq(2)]);
}

/// P1: the writer's word never comes. It is told so, or a reservation's time is over.
#[test]
fn what_a_page_shows_early_does_not_wait_for_ever() {
    let patience = u64::try_from(Settings::default().reservation_ttl.as_millis()).unwrap();
    for last in [vec![Step::Abandon(0)], vec![Step::Pass(patience), Step::Lookup]] {
        let mut world = World::new();
        [Step::Reserve(Some(0)), Step::Commit(0), Step::Page(5)].iter().for_each(|step| world.play(step));
        last.iter().chain([&Step::Draw]).for_each(|step| world.play(step));
        assert_eq!(world.running.len(), 1, "{last:?}");
    }
}

/// P1: the rows of a page were asked for, and one of them was not read because it was here; then its writer is gone.
#[test]
fn what_a_page_has_shown_stays_with_it() {
    let mut world = World::new();
    for step in [Step::Reserve(Some(0)), Step::Commit(0), Step::BeginPage(5), Step::AskPage, Step::Abandon(0)] {
        world.play(&step);
    }
    [Step::EndPage, Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running.len(), 1);
}

/// P1: the same for an event that is known to be the first of its key.
#[test]
fn what_a_page_has_shown_stays_with_it_whatever_was_asked() {
    let mut world = World::new();
    for step in [Step::Reserve(Some(0)), Step::BeginAsk, Step::EndAsk, Step::Commit(0), Step::Page(5), Step::Abandon(0)]
    {
        world.play(&step);
    }
    world.play(&Step::Draw);
    assert_eq!(world.running.len(), 1);
}

/// O1: what comes before an event is asked for while its transaction is open, so it needs no page when it is committed. Where
/// something comes before it, or several are open, that takes a page.
#[test]
fn an_event_with_a_key_that_is_the_first_needs_no_page() {
    let mut world = World::new();
    let steps = [Step::Reserve(Some(0)), Step::BeginAsk, Step::Commit(0), Step::Confirm(0), Step::Draw];
    steps.iter().for_each(|step| world.play(step));
    assert!(world.running.is_empty(), "the answer is under way");
    [Step::EndAsk, Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running.len(), 1);

    let steps = [Step::Reserve(Some(1)), Step::BeginAsk, Step::EndAsk, Step::Commit(0), Step::Confirm(0), Step::Draw];
    steps.iter().for_each(|step| world.play(step));
    assert_eq!(world.running.len(), 2);

    let steps = [Step::Write(Some(2)), Step::Reserve(Some(2)), Step::BeginAsk, Step::Commit(0), Step::EndAsk];
    steps.iter().chain([&Step::Confirm(0), &Step::Draw]).for_each(|step| world.play(step));
    assert_eq!(world.running.len(), 2, "one comes before it");
    assert!(matches!(world.flight.before_expected(), Before::Known), "it is not asked for again");
    [Step::Page(5), Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running[2].delivery.seq(), Seq(3));

    let mut world = World::new();
    (0..3).for_each(|key| world.play(&Step::Reserve(Some(key))));
    assert!(matches!(world.flight.before_expected(), Before::Page));
    assert!(matches!(world.flight.before_expected(), Before::Known), "the page is called for once");
    for step in [Step::BeginPage(5), Step::Commit(0), Step::Confirm(0), Step::EndPage, Step::Draw] {
        world.play(&step);
    }
    assert_eq!(world.running.len(), 1);
}

/// O1: a question that fails says nothing: what comes before the event is for a page to show.
#[test]
fn an_event_with_a_key_that_nobody_could_ask_about_takes_a_page() {
    let mut world = World::new();
    let steps = [Step::Write(Some(0)), Step::Reserve(Some(0)), Step::BeginAsk, Step::FailAsk, Step::Commit(0)];
    steps.iter().chain([&Step::Confirm(0), &Step::Draw]).for_each(|step| world.play(step));
    assert!(world.running.is_empty(), "one comes before it");
    assert!(matches!(world.flight.before_expected(), Before::Known), "it is not asked for again");
    [Step::Page(5), Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running.iter().map(|job| job.delivery.seq()).collect::<Vec<_>>(), [Seq(1)]);
}

/// O1: what a question finds and this node has in flight is no reason for a page: its follower waits behind it, and for it
/// alone.
#[test]
fn an_event_with_a_key_takes_its_place_behind_those_in_flight() {
    let mut world = World::new();
    let next = [Step::Reserve(Some(0)), Step::BeginAsk, Step::EndAsk, Step::Commit(0), Step::Confirm(0), Step::Draw];
    // The second is asked about while the first runs, the third when the second has ended and is not settled.
    next.iter().chain(&next).for_each(|step| world.play(step));
    assert_eq!(world.running.iter().map(|job| job.delivery.seq()).collect::<Vec<_>>(), [Seq(1)]);
    [Step::Done(0), Step::Draw].iter().for_each(|step| world.play(step));
    assert_eq!(world.running.iter().map(|job| job.delivery.seq()).collect::<Vec<_>>(), [Seq(2)]);
    [Step::Done(0)].iter().chain(&next).for_each(|step| world.play(step));
    assert_eq!(world.running.iter().map(|job| job.delivery.seq()).collect::<Vec<_>>(), [Seq(3)]);
}

/// O1: a question shows a few rows. When this node has all of those in flight, others may follow that it does not know.
#[test]
fn more_in_flight_than_a_question_shows_take_a_page() {
    let mut world = World::new();
    (0..Ask::ROWS).for_each(|_| world.play(&Step::Write(Some(0))));
    for step in std::iter::repeat_n([Step::Page(5), Step::Draw, Step::Done(0)], Ask::ROWS).flatten() {
        world.play(&step);
        world.play(&Step::Fetch);
    }
    assert_eq!(world.done.len(), Ask::ROWS, "none is settled");
    let last = [Step::Write(Some(0)), Step::Reserve(Some(0)), Step::BeginAsk, Step::EndAsk, Step::Commit(0)];
    last.iter().chain([&Step::Confirm(0), &Step::Draw]).for_each(|step| world.play(step));
    assert!(world.running.is_empty(), "one comes before it");
    world.calm();
    assert_eq!(world.waiting(), []);
}

/// O1: the reader is in the middle of a page that began before the event was written, or after. The answer counts all the
/// same, and the page shows the event no second time.
#[test]
fn a_question_needs_not_wait_for_a_page_that_is_under_way() {
    for after in [false, true] {
        let mut world = World::new();
        let mut steps = vec![Step::Reserve(Some(0))];
        steps.insert(usize::from(after), Step::BeginPage(5));
        steps.extend([Step::BeginAsk, Step::Commit(0), Step::Confirm(0), Step::EndAsk, Step::Draw]);
        steps.iter().for_each(|step| world.play(step));
        assert_eq!(world.running.len(), 1, "a page begun after it: {after}");
        [Step::Done(0), Step::AskPage].iter().chain(&SETTLE).for_each(|step| world.play(step));
        [Step::EndPage, Step::Draw].iter().for_each(|step| world.play(step));
        assert!(world.running.is_empty());
    }
}

/// O1: pages may be ahead of a transaction that is still open. What it commits late is found by whoever asks what comes
/// before an event.
#[test]
fn what_comes_before_an_event_is_asked_from_the_mark_and_not_from_the_position() {
    let mut world = World::new();
    world.flight.advance(Position { seq: Seq(9), mark: Seq(3), token: None });
    let batch = world.flight.take_batch(world.now);
    world.flight.settled(&batch, world.now);
    assert_eq!(batch.mark, Some(Seq(3)), "it is stored");
    world.play(&Step::Reserve(Some(0)));
    let Before::Ask(Ask { from, .. }) = world.flight.before_expected() else { panic!("it is the only one") };
    assert_eq!(from, Seq(4));
}
