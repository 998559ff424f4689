//! The model played at random, and what the simulation has found with it, step by step.

use proptest::prelude::*;

use super::{step::step, *};
use crate::domain::Load;

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

/// D13, decision 10: the suspects that a crash leaves are as many as were in flight: what a settle under way holds is so, too.
#[test]
fn no_more_is_in_flight_at_a_crash_than_was_published() {
    let (workers, hot) = (3, 2);
    let settings = Settings { workers, settle_batch: 1, hot_capacity: hot, cold_capacity: 100, ..settings() };
    let (bound, limit) = (settings.in_flight_bound() as usize, settings.unsettled_limit());
    let mut world = World::with(settings);
    (0..50).for_each(|_| world.play(&Step::Write(None)));
    world.play(&Step::Page(100));
    // Workers that are as busy as they may be, twice: while a settle is under way, and after it has begun.
    let deliver = |world: &mut World| {
        loop {
            while world.running.len() < workers && world.flight.unsettled() < limit {
                let running = world.running.len();
                world.play(&Step::Draw);
                if world.running.len() == running {
                    return;
                }
            }
            if world.running.len() < workers {
                return;
            }
            world.play(&Step::Done(0));
        }
    };
    deliver(&mut world);
    (0..workers).for_each(|_| world.play(&Step::Done(0)));
    let under_way = world.flight.unsettled();
    world.play(&Step::BeginSettle);
    deliver(&mut world);
    let in_flight = under_way + world.flight.unsettled() + world.running.len();
    assert!(in_flight > limit + workers, "a settle under way and as much again: {in_flight}");
    assert!(in_flight + hot <= bound, "{in_flight} and {hot} hot ones are more than {bound}");
}

/// O5: a node is saturated as soon as somebody waits while all workers are busy all the time: twelve slow keys on eight
/// workers are four that wait.
#[test]
fn a_node_is_saturated_when_anything_waits_and_no_worker_has_paused() {
    let settings = Settings { workers: 2, cold_capacity: 100, ..settings() };
    let mut world = World::with(settings);
    // From here on its workers have something to do.
    (0..10).for_each(|_| world.flight.set_idle(false));
    (0..3).for_each(|key| world.play(&Step::Write(Some(key))));
    world.play(&Step::Page(100));
    world.flight.take_load(2);
    (0..2).for_each(|_| world.play(&Step::Draw));
    assert_eq!(world.flight.take_load(2), Load::Saturated, "one waits");
    world.flight.set_idle(true);
    world.flight.set_idle(false);
    assert_eq!(world.flight.take_load(2), Load::Busy, "a worker had a pause");
    world.play(&Step::Done(0));
    world.play(&Step::Draw);
    assert_eq!(world.flight.take_load(2), Load::Busy, "nobody waits");
}
