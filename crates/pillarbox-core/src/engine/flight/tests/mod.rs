//! A table, a reader, workers and a settler in miniature, played at random against the node's memory: whatever
//! happens in whatever order, and also when the node dies at any point, every event is delivered, once if nothing
//! died, and in order per key.

mod cases;
mod step;

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Duration, Instant};

use self::step::{Index, Step};
use super::*;
use crate::{
    Event,
    domain::{Delivery, Incarnation, Key, Lease, NodeId, Record, Status, Timestamp},
    port::{Batch, Candidate, Change, Hold, HoldChange, HoldKind, Recall, Row, Taken},
};

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
