//! Transactions are simulated step by step, with steps of others between the parts of a pass.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn open(first: u64, last: u64, floor: i64) -> Open {
    Open { first, last, floor }
}

fn horizon(running: &[u64], xmax: u64, numbers: i64, next: u64) -> Horizon {
    Horizon { running: running.to_vec(), xmax, numbers, next }
}

#[test]
fn a_horizon_is_read_from_its_text() {
    assert_eq!(Horizon::parse("743:750:743,748 12 749"), Some(horizon(&[743, 748], 750, 12, 752)));
    assert_eq!(Horizon::parse("743:743: 0 740"), Some(horizon(&[], 743, 0, 743)));
    for broken in ["", "743:743", "743:743: 1", "743:x: 1 2", "743:743:a 1 2"] {
        assert_eq!(Horizon::parse(broken), None, "{broken:?}");
    }
}

/// The age has 32 bits and a sign; 0, 1 and 2 are never given out.
#[test]
fn the_next_id_is_widened_across_the_wrap_of_the_counter() {
    let around = 1_u64 << 32;
    let text = |xmax: u64, next: u64| {
        let age = u32::try_from(next % around).unwrap().wrapping_sub(3).cast_signed();
        format!("{xmax}:{xmax}: 1 {age}")
    };
    for (xmax, next) in [
        (around - 2, around + 5),
        (around + 3, around + 3),
        (5 * around - 1, 5 * around + 3),
        (around / 2 - 1, around / 2 + 7),
        (7 * around + 10, 7 * around + 4_000_000),
    ] {
        assert_eq!(Horizon::parse(&text(xmax, next)).unwrap().next, next, "{xmax} {next}");
    }
}

#[test]
fn ids_are_parted_by_the_snapshot() {
    let seen = horizon(&[12, 14], 17, 0, 20);
    let (still, ended) = split(open(10, 19, 5), &seen);
    assert_eq!(still, [open(12, 12, 5), open(14, 14, 5), open(17, 19, 5)]);
    assert_eq!(ended, [open(10, 11, 5), open(13, 13, 5), open(15, 16, 5)]);
    assert_eq!(split(open(12, 12, 5), &seen), (vec![open(12, 12, 5)], vec![]));
    assert_eq!(split(open(16, 16, 5), &seen), (vec![], vec![open(16, 16, 5)]));
    assert_eq!(split(open(18, 19, 5), &seen), (vec![open(18, 19, 5)], vec![]));
}

#[test]
fn a_position_survives_its_text() {
    let track = Track { seq: 7, numbers: 9, next: 12, open: vec![open(3, 3, 1), open(10, 11, 9)] };
    let position = track.position();
    assert_eq!((position.seq, position.mark), (Seq(7), Seq(1)));
    assert_eq!(Track::resume(&position), track);
}

#[test]
fn a_long_transaction_is_waited_for_by_the_mark_and_not_by_the_position() {
    let mut track = Track::resume(&Position::at(Seq(100)));
    track.advance(&horizon(&[50], 60, 110, 60), Reach::Everything);
    assert_eq!((track.seq, track.position().mark), (110, Seq(100)));
    for numbers in [120, 130, 140] {
        track.advance(&horizon(&[50], 90, numbers, 90), Reach::Everything);
        assert_eq!((track.seq, track.position().mark), (numbers, Seq(100)));
        assert_eq!(track.to_probe(), [open(50, 50, 100)]);
    }
    track.advance(&horizon(&[], 95, 150, 95), Reach::Everything);
    assert_eq!((track.to_probe(), track.position().mark), (vec![], Seq(150)));
}

#[test]
fn in_a_backlog_nothing_is_probed() {
    let mut track = Track::resume(&Position::START);
    track.advance(&horizon(&[], 10, 1_000, 12), Reach::Forward(100));
    // 10 and 11 might have rows from the start, for all we know; 14 has them above 1,000 only.
    assert_eq!(track.to_probe(), [open(10, 11, 0)]);
    track.advance(&horizon(&[14], 16, 1_001, 16), Reach::Forward(200));
    assert_eq!(track.to_probe(), []);
    track.advance(&horizon(&[], 17, 1_001, 17), Reach::Forward(300));
    assert_eq!(track.open, []);
}

#[test]
fn late_rows_that_fill_a_pass_leave_the_rest_to_the_next() {
    let mut track = Track { seq: 100, numbers: 100, next: 20, open: vec![open(5, 9, 10)] };
    assert_eq!(Reach::of(&[11, 12], 2, true, 100), Reach::Late(12));
    track.advance(&horizon(&[7], 20, 105, 20), Reach::Late(12));
    assert_eq!(track.seq, 100);
    assert_eq!(track.open, [open(7, 7, 10), open(5, 6, 12), open(8, 9, 12)]);
    assert_eq!(track.position().mark, Seq(10));
}

#[test]
fn how_far_a_pass_came() {
    for (seqs, taken, full, reach) in [
        (&[][..], 0, false, Reach::Everything),
        (&[3, 12], 2, false, Reach::Everything),
        (&[3, 12], 2, true, Reach::Forward(12)),
        (&[3, 12], 1, false, Reach::Forward(3)),
        (&[12, 13], 0, false, Reach::Forward(10)),
        (&[3, 4, 12], 1, false, Reach::Late(3)),
        (&[3, 4, 12], 0, true, Reach::Late(i64::MIN)),
        (&[3, 4], 2, true, Reach::Late(4)),
    ] {
        assert_eq!(Reach::of(seqs, taken, full, 10), reach, "{seqs:?} {taken} {full}");
    }
}

/// A database of transactions and numbers, with two partitions and some keys in each.
#[derive(Debug, Default)]
struct World {
    next: u64,
    numbers: i64,
    /// The highest id that has ended.
    ended: u64,
    running: BTreeMap<u64, Running>,
    /// Committed and not yet read: the number, with its id.
    table: BTreeMap<i64, (u64, Lane)>,
    locks: BTreeMap<Lane, u64>,
    committed: BTreeSet<i64>,
}

/// A partition and a key.
type Lane = (u8, u8);

/// What a transaction has written, and the last id that it took for a subtransaction.
#[derive(Debug, Default)]
struct Running {
    rows: Vec<(i64, Lane)>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A transaction takes its id.
    Begin,
    /// One of those that run takes an id for a subtransaction. It ends with the others, and no snapshot lists it.
    Nest(u8),
    /// One of those that run takes a number, if nobody else holds the lock of the key.
    Write(u8, Lane),
    Commit(u8),
    Abort(u8),
}

#[derive(Clone, Debug)]
enum Act {
    Step(Step),
    /// A pass of a reader, with steps between its snapshot, V and N, of so many rows, of which so many are taken.
    Pass {
        reader: usize,
        after_snapshot: Vec<Step>,
        after_numbers: Vec<Step>,
        chunk: usize,
        taken: usize,
    },
    /// A reader is gone, and another goes on at the mark.
    TakeOver(usize),
    /// The second reader's partition goes to the first, if it is not there already.
    HandOver,
}

#[derive(Debug)]
struct Reader {
    position: Position,
    partitions: BTreeSet<u8>,
}

impl World {
    fn nth(&self, n: u8) -> Option<u64> {
        let count = self.running.len();
        if count == 0 { None } else { self.running.keys().nth(usize::from(n) % count).copied() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Begin => {
                self.running.insert(self.next, Running { rows: Vec::new(), last: self.next });
                self.next += 1;
            }
            Step::Nest(n) => {
                let Some(id) = self.nth(n) else { return };
                self.running.get_mut(&id).unwrap().last = self.next;
                self.next += 1;
            }
            Step::Write(n, lane) => {
                let Some(id) = self.nth(n) else { return };
                if *self.locks.entry(lane).or_insert(id) == id {
                    self.numbers += 1;
                    self.running.get_mut(&id).unwrap().rows.push((self.numbers, lane));
                }
            }
            Step::Commit(n) | Step::Abort(n) => {
                let Some(id) = self.nth(n) else { return };
                let Running { rows, last } = self.running.remove(&id).unwrap();
                self.ended = self.ended.max(last);
                self.locks.retain(|_, holder| *holder != id);
                if let Step::Commit(_) = step {
                    self.committed.extend(rows.iter().map(|(seq, _)| *seq));
                    self.table.extend(rows.into_iter().map(|(seq, lane)| (seq, (id, lane))));
                }
            }
        }
    }
}

/// One pass; the rows taken, in order.
fn pass(world: &mut World, reader: &mut Reader, act: &Act) -> Vec<(i64, Lane)> {
    let Act::Pass { after_snapshot, after_numbers, chunk, taken, .. } = act else { unreachable!() };
    let mut track = Track::resume(&reader.position);
    let xmax = world.ended + 1;
    let running = world.running.keys().copied().filter(|id| *id < xmax).collect();
    let probe = track.to_probe();
    let mine = world.table.iter().filter(|(_, (_, lane))| reader.partitions.contains(&lane.0));
    let rows: Vec<(i64, Lane)> = mine
        .filter(|(seq, (id, _))| {
            let late = |open: &Open| (open.first..=open.last).contains(id) && **seq > open.floor;
            **seq > track.seq || probe.iter().any(late)
        })
        .map(|(seq, (_, lane))| (*seq, *lane))
        .take(*chunk)
        .collect();
    after_snapshot.iter().for_each(|step| world.step(*step));
    let numbers = world.numbers;
    after_numbers.iter().for_each(|step| world.step(*step));
    let horizon = Horizon { running, xmax, numbers, next: world.next };

    let seqs: Vec<i64> = rows.iter().map(|(seq, _)| *seq).collect();
    let taken = rows.len().min(*taken);
    let reach = Reach::of(&seqs, taken, rows.len() >= *chunk, track.seq);
    track.advance(&horizon, reach);
    for (seq, _) in &rows[..taken] {
        world.table.remove(seq);
        assert!(*seq > reader.position.mark.0, "{seq} appeared below the mark of {:?}", reader.position);
    }
    let before = std::mem::replace(&mut reader.position, track.position());
    assert!(reader.position.seq >= before.seq && reader.position.mark >= before.mark, "{before:?} {track:?}");
    rows[..taken].to_vec()
}

fn lane() -> impl Strategy<Value = Lane> {
    (0..2_u8, 0..3_u8)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        1 => any::<u8>().prop_map(Step::Nest),
        5 => (any::<u8>(), lane()).prop_map(|(n, lane)| Step::Write(n, lane)),
        3 => any::<u8>().prop_map(Step::Commit),
        1 => any::<u8>().prop_map(Step::Abort),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let few = || proptest::collection::vec(step(), 0..4);
    let pass = (0..2_usize, few(), few(), 1..5_usize, 0..6_usize);
    prop_oneof![
        8 => step().prop_map(Act::Step),
        5 => pass.prop_map(|(reader, after_snapshot, after_numbers, chunk, taken)| {
            Act::Pass { reader, after_snapshot, after_numbers, chunk, taken }
        }),
        1 => (0..2_usize).prop_map(Act::TakeOver),
        1 => Just(Act::HandOver),
    ]
}

fn check(acts: Vec<Act>) {
    let mut world = World { next: 3, ended: 2, ..World::default() };
    let mut readers =
        [0, 1].map(|partition| Reader { position: Position::START, partitions: BTreeSet::from([partition]) });
    let mut read: Vec<(i64, Lane)> = Vec::new();
    // In the end everything is finished and read.
    let finish = (0..200).map(|n| Act::Step(Step::Commit(n)));
    let drain = (0..400).map(|n| Act::Pass {
        reader: n % 2,
        after_snapshot: vec![],
        after_numbers: vec![],
        chunk: 3,
        taken: 3,
    });
    for act in acts.into_iter().chain(finish).chain(drain) {
        match &act {
            Act::Step(step) => world.step(*step),
            Act::Pass { reader, .. } => read.extend(pass(&mut world, &mut readers[*reader], &act)),
            Act::TakeOver(reader) => readers[*reader].position = Position::at(readers[*reader].position.mark),
            Act::HandOver => {
                if readers[1].partitions.remove(&1) {
                    let mark = readers[1].position.mark;
                    readers[0].position.lower(mark);
                    readers[0].partitions.insert(1);
                }
            }
        }
    }
    let numbers: BTreeSet<i64> = read.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers.len(), read.len(), "each once");
    assert_eq!(numbers, world.committed, "and none lost");
    let mut last: BTreeMap<Lane, i64> = BTreeMap::new();
    for (seq, lane) in &read {
        let before = last.insert(*lane, *seq);
        assert!(before < Some(*seq), "{seq} after {before:?} in {lane:?}");
    }
    for reader in &readers {
        assert_eq!(reader.position.mark, Seq(world.numbers), "nothing is open any more");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_read_once_and_each_key_in_order(acts in proptest::collection::vec(act(), 0..120)) {
        check(acts);
    }
}
