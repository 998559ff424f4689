//! Stories with one thing wrong in each.

use super::{Cause, Line, Order, Report, Story, Violation, check};

/// `what node at epoch id key order`; all in partition 7.
fn line(text: &str) -> Line {
    let words: Vec<&str> = text.split(' ').collect();
    let [what, node, at, epoch, id, key, order] = words[..] else { panic!("{text}") };
    Line::parse(&format!("{what} {node} {at} {epoch} 7 {id} {key} {order}")).unwrap()
}

/// Orders 1 to 3 of one key, which are `a`, `b` and `c`.
fn read(lines: &[&str]) -> Report {
    let order = |(number, id): (i64, &str)| Order { number, id: id.into(), key: Some("k".into()) };
    let orders = [(1, "a"), (2, "b"), (3, "c")].map(order).to_vec();
    check(Story { orders, lines: lines.iter().map(|text| line(text)).collect(), ..Story::default() })
}

const WELL: [&str; 8] = [
    "took x 5 1 - - 0",
    "begin x 10 1 a k 1",
    "end x 11 1 a k 1",
    "settled x 13 1 - - 12",
    "begin x 20 1 b k 2",
    "end x 21 1 b k 2",
    "begin x 30 1 c k 3",
    "end x 31 1 c k 3",
];

fn with(more: &[&str]) -> Report {
    read(&[&WELL, more].concat())
}

#[test]
fn a_story_in_which_nothing_is_wrong_has_no_violation() {
    let report = read(&WELL);
    assert_eq!(report.violations, []);
    assert_eq!((report.committed, report.begun), (3, 3));
    assert!(report.repeats.is_empty() && report.faults.is_empty());
}

#[test]
fn what_is_committed_and_not_delivered_is_lost_and_the_other_way_round_a_ghost() {
    let report = read(&WELL[..7]);
    assert!(matches!(&report.violations[..], [Violation::Lost(order)] if order.id == "c"), "{report}");
    let report = with(&["begin x 40 1 z - 9", "end x 41 1 z - 9", "committed w 42 0 y - 8"]);
    let [Violation::Ghost(ghost), Violation::Undone(undone)] = &report.violations[..] else { panic!("{report}") };
    assert_eq!((ghost.id.as_str(), undone.id.as_str()), ("z", "y"));
}

#[test]
fn an_event_that_begins_before_an_earlier_one_of_its_key_has_succeeded_is_out_of_order() {
    let mut lines = WELL;
    lines[5] = "failed x 21 1 b k 2";
    let report = read(&[&lines[..], &["begin x 40 1 b k 2", "end x 41 1 b k 2"]].concat());
    let [Violation::OutOfOrder { began, before }] = &report.violations[..] else { panic!("{report}") };
    assert_eq!((began.id.as_str(), before.id.as_str()), ("c", "b"));
}

#[test]
fn what_succeeded_comes_again_only_after_a_fault_and_never_under_the_same_epoch() {
    let again = ["begin y 60 2 c k 3", "end y 61 2 c k 3"];
    let report = with(&again);
    assert!(matches!(&report.violations[..], [Violation::Doubled { again, .. }] if again.at == 60), "{report}");
    for (fault, cause) in [
        ("killed x 40 0 - - 0", Cause::Killed),
        ("paused x 25 0 - - 0", Cause::Paused),
        ("lapsed x 40 0 - - 0", Cause::Lapsed),
        ("restarted - 40 0 - - 0", Cause::Restarted),
        ("left x 40 0 - - 0", Cause::Left),
        ("slow x 40 0 - - 0", Cause::Slow),
    ] {
        let report = with(&[&[fault], &again[..]].concat());
        assert_eq!(report.violations, [], "{fault}");
        assert_eq!(report.repeats.into_iter().collect::<Vec<_>>(), [(cause, 1)]);
    }
    // The fault of another node is no excuse, nor is one that came before the success, nor a connection that was cut.
    for fault in ["killed z 40 0 - - 0", "restarted - 29 0 - - 0", "cut - 40 0 - - 0"] {
        assert_eq!(with(&[&[fault], &again[..]].concat()).violations.len(), 1, "{fault}");
    }
    let same = with(&["restarted - 40 0 - - 0", "begin x 60 1 c k 3", "end x 61 1 c k 3"]);
    assert!(matches!(&same.violations[..], [Violation::Doubled { .. }]), "{same}");
}

#[test]
fn a_restart_is_one_fault_and_explains_a_repeat_from_its_beginning_on() {
    let report = with(&["away - 35 0 - - 0", "begin y 40 2 c k 3", "restarted - 45 0 - - 0", "end y 46 2 c k 3"]);
    assert_eq!(report.violations, []);
    assert_eq!(report.faults.into_iter().collect::<Vec<_>>(), [("restarted", 1)]);
    assert_eq!(report.repeats.into_iter().collect::<Vec<_>>(), [(Cause::Restarted, 1)]);
}

/// `c` succeeds at 31, in a partition that was taken at 5, and comes again at 60.
#[test]
fn a_pause_explains_a_repeat_only_as_long_as_its_lease_is_not_whole_again() {
    for (explains, story) in [
        // It ran through the pause, and the lease was lost.
        (true, &["paused x 28 0 - - 0", "lapsed x 29 0 - - 0", "resumed x 30 0 - - 0", "renewed x 41 0 - - 40"][..]),
        // The pause came after it, and before it was settled.
        (true, &["paused x 35 0 - - 0", "lapsed x 50 0 - - 0"]),
        // The lease outlived it, and the node was late.
        (true, &["paused x 28 0 - - 0", "resumed x 30 0 - - 0", "renewed x 34 0 - - 33"]),
        // This renewal was on its way when the node was paused: nothing is known of the lease afterwards.
        (true, &["paused x 22 0 - - 0", "resumed x 25 0 - - 0", "renewed x 26 0 - - 21"]),
        // The lease was whole again before it succeeded.
        (false, &["paused x 22 0 - - 0", "resumed x 25 0 - - 0", "renewed x 27 0 - - 26"]),
        // Another lease was lost than the one it was delivered under.
        (false, &["paused x 2 0 - - 0", "lapsed x 3 0 - - 0", "resumed x 4 0 - - 0", "renewed x 7 0 - - 6"]),
        // It came after the repeat.
        (false, &["paused x 62 0 - - 0"]),
        (false, &["paused z 35 0 - - 0"]),
    ] {
        let report = with(&[story, &["begin y 60 2 c k 3", "end y 61 2 c k 3"]].concat());
        // One who asks for the cause is not told of the lapse that came of it.
        let repeats: Vec<_> = report.repeats.iter().map(|(cause, count)| (*cause, *count)).collect();
        assert_eq!(repeats, if explains { vec![(Cause::Paused, 1)] } else { vec![] }, "{story:?}");
        let doubled = matches!(&report.violations[..], [Violation::Doubled { .. }]);
        assert_eq!(doubled, !explains, "{story:?}: {report}");
    }
}

#[test]
fn a_process_that_ends_badly_is_a_violation() {
    let report = with(&["broke x 50 0 - - 0"]);
    assert!(matches!(&report.violations[..], [Violation::Broke(line)] if line.node == "x"), "{report}");
}

#[test]
fn two_at_once_is_excused_by_a_pause_and_ended_by_a_kill() {
    let two = ["begin x 40 1 c k 3", "begin y 50 2 c k 3", "end x 55 1 c k 3", "end y 61 2 c k 3"];
    let mut lines = WELL[..6].to_vec();
    lines.extend(two);
    let report = read(&lines);
    assert!(
        matches!(&report.violations[..], [Violation::TwoAtOnce { one, other }] if one.at == 40 && other.at == 50),
        "{report}"
    );
    for (fault, spoils) in [
        ("paused x 45 0 - - 0", false),
        ("killed x 45 0 - - 0", false),
        ("paused y 45 0 - - 0", true),
        ("killed z 45 0 - - 0", true),
        // Whoever expels it says so of a healthy node that runs on, too; and none of these keeps it from stopping.
        ("lapsed x 45 0 - - 0", true),
        ("cut - 45 0 - - 0", true),
        ("restarted - 45 0 - - 0", true),
    ] {
        let report = read(&[&lines[..], &[fault]].concat());
        let spoilt = report.violations.iter().any(|violation| matches!(violation, Violation::TwoAtOnce { .. }));
        assert_eq!(spoilt, spoils, "{fault}: {report}");
    }
    // It stood still before, and had gone on long since.
    for (pause, spoils) in [([38, 39], true), ([41, 45], true), ([41, 51], false), ([38, 51], false)] {
        let pause = [format!("paused x {} 0 - - 0", pause[0]), format!("resumed x {} 0 - - 0", pause[1])];
        let report = read(&[&lines[..], &[&pause[0], &pause[1]]].concat());
        assert_eq!(report.violations.len(), usize::from(spoils), "{pause:?}: {report}");
    }
}

#[test]
fn an_outcome_that_was_sent_after_the_next_took_over_and_took_effect_is_stale() {
    let report = with(&["took y 40 2 - - 0", "settled x 50 1 - - 45"]);
    assert!(matches!(&report.violations[..], [Violation::StaleSettle { took, .. }] if took.at == 40), "{report}");
    let report = with(&["took y 40 2 - - 0", "settled x 50 1 - - 39", "settled y 60 2 - - 55"]);
    assert_eq!(report.violations, []);
}

#[test]
fn events_that_were_to_be_given_up_are_neither_lost_nor_waited_for() {
    let mut story = Story {
        orders: [(1, "a"), (2, "b")].map(|(number, id)| Order { number, id: id.into(), key: Some("k".into()) }).into(),
        lines: ["begin x 10 1 a k 1", "failed x 11 1 a k 1", "begin x 20 1 b k 2", "end x 21 1 b k 2"].map(line).into(),
        ..Story::default()
    };
    assert_eq!(check(story.clone()).violations.len(), 2);
    story.dead.insert("a".into());
    assert_eq!(check(story).violations, []);
}

#[test]
fn a_line_reads_as_it_is_written_and_a_torn_one_does_not() {
    let text = "begin x 10 1 7 a k 1";
    assert_eq!(Line::parse(text).unwrap().to_string(), text);
    assert_eq!(Line::parse("begin x 10 1 7 a - 1").unwrap().key, None);
    for torn in ["", "begin x 10", "begin x 10 1 7 a k 1 2", "begin x ten 1 7 a k 1"] {
        assert_eq!(Line::parse(torn), None, "{torn:?}");
    }
}
