//! The verdict: what the writers were told, what the shop's tables say, what the outbox's table says and what
//! the handlers saw must agree. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use pillarbox::EventId;
use serde::Serialize;

use super::{
    ledger::{Attempt, Place, Step, What},
    plan::Fate,
};

/// How many examples of each problem are kept.
const EXAMPLES: usize = 10;

/// An event whose transaction was committed, by the writer's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Committed {
    pub(super) id: EventId,
    pub(super) what: What,
    pub(super) place: Option<Place>,
    pub(super) fate: Fate,
    /// Nanoseconds since the run began.
    pub(super) at: u64,
}

/// An event as it lies in the outbox's table.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) id: EventId,
    pub(super) status: String,
    /// From its columns; `None` if they name nothing that the shop knows.
    pub(super) what: Option<What>,
}

/// The shop's own tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Shop {
    /// How far each order has come.
    pub(super) orders: HashMap<u32, Step>,
    /// How many events each customer has.
    pub(super) customers: HashMap<u32, u32>,
    pub(super) signups: HashSet<u32>,
}

/// Everything the verdict rests on.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    pub(super) committed: Vec<Committed>,
    pub(super) rolled_back: Vec<(EventId, What)>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) stored: Vec<Stored>,
    pub(super) shop: Shop,
    /// The run was interrupted: events may still wait.
    pub(super) interrupted: bool,
}

/// Ways to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Problem {
    /// Committed, and neither delivered nor dead as planned.
    Lost,
    /// Dead, and not planned to be.
    UnplannedDeath,
    /// Planned to be dead, and not.
    NotDead,
    /// Delivered, and not DONE in the table.
    Unfinished,
    /// Delivered again after a success.
    Duplicate,
    /// Tried more or less often than planned.
    Attempts,
    /// After a later event of its customer.
    OutOfOrder,
    /// Stored or delivered, though its transaction was rolled back.
    RolledBack,
    /// Stored or delivered, and nobody wrote it.
    Unknown,
    /// The shop's tables and the outbox's do not agree.
    Miscount,
}

/// The problems found, each with its number and the first examples.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings(BTreeMap<Problem, Found>);

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Found {
    pub(super) count: u64,
    pub(super) examples: Vec<String>,
}

impl Findings {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Problem, &Found)> {
        self.0.iter().map(|(problem, found)| (*problem, found))
    }

    fn add(&mut self, problem: Problem, example: impl FnOnce() -> String) {
        let found = self.0.entry(problem).or_default();
        found.count += 1;
        if found.examples.len() < EXAMPLES {
            found.examples.push(example());
        }
    }
}

/// Compares everything with everything.
pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    let committed: HashMap<EventId, &Committed> = evidence.committed.iter().map(|event| (event.id, event)).collect();
    let rolled_back: HashSet<EventId> = evidence.rolled_back.iter().map(|(id, _)| *id).collect();
    let tried = check_attempts(evidence, &committed, &rolled_back, &mut findings);
    let stored = check_stored(evidence, &committed, &rolled_back, &mut findings);
    for event in &evidence.committed {
        let status = stored.get(&event.id).copied();
        let waits = matches!(status, Some("NEW" | "RETRY"));
        let tried = tried.get(&event.id).copied().unwrap_or_default();
        if !(evidence.interrupted && waits && !tried.delivered) {
            check_end(event, tried, status, &mut findings);
        }
    }
    check_shop(evidence, &mut findings);
    findings
}

/// What the handlers saw of one event.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    failures: u32,
    delivered: bool,
}

/// Goes through the ledger from the first call to the last.
fn check_attempts(
    evidence: &Evidence,
    committed: &HashMap<EventId, &Committed>,
    rolled_back: &HashSet<EventId>,
    findings: &mut Findings,
) -> HashMap<EventId, Tried> {
    let mut tried: HashMap<EventId, Tried> = HashMap::new();
    let mut latest: HashMap<u32, u32> = HashMap::new();
    for attempt in &evidence.attempts {
        let Attempt { id, what, place, ok, .. } = *attempt;
        if rolled_back.contains(&id) {
            findings.add(Problem::RolledBack, || format!("{what} was delivered ({id})"));
            continue;
        }
        if committed.get(&id).is_none_or(|event| event.what != what || event.place != place) {
            findings.add(Problem::Unknown, || format!("{what} was delivered, and nobody wrote it so ({id})"));
            continue;
        }
        let seen = tried.entry(id).or_default();
        if seen.delivered {
            findings.add(Problem::Duplicate, || format!("{what} was delivered again ({id})"));
            continue;
        }
        seen.delivered |= ok;
        seen.failures += u32::from(!ok);
        if let Some(Place { customer, nth }) = place {
            let latest = latest.entry(customer).or_default();
            if nth < *latest {
                let later = *latest;
                findings.add(Problem::OutOfOrder, || {
                    format!("{what}, event {nth} of customer {customer}, came after event {later} ({id})")
                });
            }
            *latest = nth.max(*latest);
        }
    }
    tried
}

/// Goes through the outbox's table. Returns the status of each committed event.
fn check_stored<'a>(
    evidence: &'a Evidence,
    committed: &HashMap<EventId, &Committed>,
    rolled_back: &HashSet<EventId>,
    findings: &mut Findings,
) -> HashMap<EventId, &'a str> {
    let mut statuses = HashMap::new();
    for Stored { id, status, what } in &evidence.stored {
        if rolled_back.contains(id) {
            findings.add(Problem::RolledBack, || format!("{} is stored as {status} ({id})", named(*what)));
        } else if committed.get(id).is_none_or(|event| Some(event.what) != *what) {
            findings.add(Problem::Unknown, || format!("{} is stored as {status} ({id})", named(*what)));
        } else if statuses.insert(*id, status.as_str()).is_some() {
            findings.add(Problem::Miscount, || format!("{} is stored twice ({id})", named(*what)));
        }
    }
    statuses
}

/// How one committed event ended.
fn check_end(event: &Committed, tried: Tried, status: Option<&str>, findings: &mut Findings) {
    let Committed { id, what, fate, .. } = *event;
    let now = status.unwrap_or("not stored");
    if fate.is_dead() {
        if tried.delivered || status != Some("DEAD") {
            findings.add(Problem::NotDead, || format!("{what} should be DEAD, and is {now} ({id})"));
        }
    } else if status == Some("DEAD") {
        findings.add(Problem::UnplannedDeath, || format!("{what} is DEAD after {} failures ({id})", tried.failures));
    } else if !tried.delivered {
        findings.add(Problem::Lost, || format!("{what} was committed, and not delivered; it is {now} ({id})"));
    } else if status != Some("DONE") {
        findings.add(Problem::Unfinished, || format!("{what} was delivered, and is {now} ({id})"));
    }
    let finished = tried.delivered || status == Some("DEAD");
    if finished && tried.failures != fate.failures() {
        findings.add(Problem::Attempts, || {
            format!("{what} failed {} times, and {} were planned ({id})", tried.failures, fate.failures())
        });
    }
}

/// What the shop's tables say happened must be what was told, and nothing else.
fn check_shop(evidence: &Evidence, findings: &mut Findings) {
    let shop = &evidence.shop;
    let mut expected: HashSet<What> = shop.signups.iter().map(|id| What::Signup(*id)).collect();
    for (order, reached) in &shop.orders {
        let steps = Step::ALL.into_iter().filter(|step| step <= reached);
        expected.extend(steps.map(|step| What::Order(*order, step)));
    }
    let told: HashSet<What> = evidence.stored.iter().filter_map(|stored| stored.what).collect();
    for what in expected.difference(&told) {
        findings.add(Problem::Miscount, || format!("{what} is in the shop's tables, and has no event"));
    }
    for what in told.difference(&expected) {
        findings.add(Problem::Miscount, || format!("{what} has an event, and is not in the shop's tables"));
    }
    let written: HashSet<What> = evidence.committed.iter().map(|event| event.what).collect();
    for what in expected.symmetric_difference(&written) {
        findings.add(Problem::Miscount, || format!("{what} is not both committed and in the shop's tables"));
    }
    let mut of_customer: HashMap<u32, u32> = HashMap::new();
    for place in evidence.committed.iter().filter_map(|event| event.place) {
        *of_customer.entry(place.customer).or_default() += 1;
    }
    for (customer, events) in &shop.customers {
        let told = of_customer.remove(customer).unwrap_or(0);
        if told != *events {
            findings.add(Problem::Miscount, || {
                format!("customer {customer} has {events} events by the shop's count, and {told} were written")
            });
        }
    }
    for (customer, told) in of_customer {
        findings
            .add(Problem::Miscount, || format!("customer {customer} is not stored, and {told} events were written"));
    }
}

fn named(what: Option<What>) -> String {
    what.map_or_else(|| "an event of no known kind".into(), |what| what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two customers: 1 has order 10 placed, paid and shipped, 2 has order 20 placed, which is to die, and
    /// then paid. One signup is flaky. One transaction was rolled back.
    fn a_good_run() -> Evidence {
        let mut run = Evidence::default();
        let place = |customer, nth| Some(Place { customer, nth });
        for (what, place, fate) in [
            (What::Order(10, Step::Placed), place(1, 1), Fate::Fine),
            (What::Order(10, Step::Paid), place(1, 2), Fate::Flaky(2)),
            (What::Order(10, Step::Shipped), place(1, 3), Fate::Fine),
            (What::Order(20, Step::Placed), place(2, 1), Fate::Hopeless),
            (What::Order(20, Step::Paid), place(2, 2), Fate::Fine),
            (What::Signup(5), None, Fate::Flaky(1)),
        ] {
            let id = pillarbox::new_id();
            run.committed.push(Committed { id, what, place, fate, at: 0 });
            let status = if fate.is_dead() { "DEAD" } else { "DONE" };
            run.stored.push(Stored { id, status: status.into(), what: Some(what) });
            let calls = fate.failures() + u32::from(!fate.is_dead());
            run.attempts.extend((0..calls).map(|call| Attempt {
                id,
                what,
                place,
                ok: !fate.is_dead() && call == fate.failures(),
                at: 0,
            }));
        }
        run.rolled_back.push((pillarbox::new_id(), What::Order(30, Step::Placed)));
        run.shop.orders = HashMap::from([(10, Step::Shipped), (20, Step::Paid)]);
        run.shop.customers = HashMap::from([(1, 3), (2, 2)]);
        run.shop.signups = HashSet::from([5]);
        run
    }

    fn attempt_of(run: &Evidence, what: What) -> usize {
        run.attempts.iter().position(|attempt| attempt.what == what).unwrap()
    }

    /// Spoils a good run, and says what the checker finds.
    fn found(spoil: impl FnOnce(&mut Evidence)) -> Vec<Problem> {
        let mut run = a_good_run();
        spoil(&mut run);
        check(&run).iter().map(|(problem, _)| problem).collect()
    }

    #[test]
    fn a_good_run_has_no_problem() {
        assert_eq!(found(|_| ()), []);
    }

    #[test]
    fn a_loss_is_found() {
        let shipped = What::Order(10, Step::Shipped);
        let lost = |run: &mut Evidence| run.attempts.retain(|attempt| attempt.what != shipped);
        assert_eq!(found(lost), [Problem::Lost]);
        // The outbox may forget the event altogether: the shop's tables know.
        let forgotten = |run: &mut Evidence| {
            lost(run);
            run.stored.retain(|stored| stored.what != Some(shipped));
        };
        assert_eq!(found(forgotten), [Problem::Lost, Problem::Miscount]);
    }

    #[test]
    fn an_event_that_nobody_remembers_but_the_shop_is_found() {
        let last = What::Order(10, Step::Shipped);
        let forget = |run: &mut Evidence| {
            run.attempts.retain(|attempt| attempt.what != last);
            run.stored.retain(|stored| stored.what != Some(last));
            run.committed.retain(|event| event.what != last);
        };
        assert_eq!(found(forget), [Problem::Miscount]);
    }

    #[test]
    fn a_reorder_is_found() {
        let overtake = |run: &mut Evidence| {
            let paid = attempt_of(run, What::Order(10, Step::Paid));
            let shipped = attempt_of(run, What::Order(10, Step::Shipped));
            run.attempts[paid..=shipped].rotate_right(1);
        };
        assert_eq!(found(overtake), [Problem::OutOfOrder]);
    }

    #[test]
    fn an_event_that_overtakes_one_that_is_not_dead_yet_is_found() {
        let overtake = |run: &mut Evidence| {
            let paid = attempt_of(run, What::Order(20, Step::Paid));
            run.attempts.swap(paid, paid - 1);
        };
        assert_eq!(found(overtake), [Problem::OutOfOrder]);
    }

    #[test]
    fn a_rolled_back_event_is_found_where_it_is_delivered_and_where_it_is_stored() {
        let deliver = |run: &mut Evidence| {
            let (id, what) = run.rolled_back[0];
            run.attempts.push(Attempt { id, what, place: None, ok: true, at: 0 });
        };
        assert_eq!(found(deliver), [Problem::RolledBack]);
        let store = |run: &mut Evidence| {
            let (id, what) = run.rolled_back[0];
            run.stored.push(Stored { id, status: "NEW".into(), what: Some(what) });
        };
        assert_eq!(found(store), [Problem::RolledBack, Problem::Miscount]);
    }

    #[test]
    fn a_rolled_back_order_that_is_in_the_shop_is_found() {
        let keep = |run: &mut Evidence| {
            run.shop.orders.insert(30, Step::Placed);
        };
        assert_eq!(found(keep), [Problem::Miscount]);
    }

    #[test]
    fn an_unplanned_death_is_found() {
        let die = |run: &mut Evidence| {
            run.attempts.retain(|attempt| attempt.what != What::Signup(5) || !attempt.ok);
            run.stored.last_mut().unwrap().status = "DEAD".into();
        };
        assert_eq!(found(die), [Problem::UnplannedDeath]);
    }

    #[test]
    fn a_planned_death_that_does_not_come_is_found() {
        let live = |run: &mut Evidence| run.stored[3].status = "RETRY".into();
        assert_eq!(found(live), [Problem::NotDead]);
        let gone = |run: &mut Evidence| {
            run.stored.remove(3);
        };
        assert_eq!(found(gone), [Problem::NotDead, Problem::Miscount]);
    }

    #[test]
    fn a_duplicate_is_found() {
        let twice = |run: &mut Evidence| run.attempts.push(run.attempts[0]);
        assert_eq!(found(twice), [Problem::Duplicate]);
    }

    #[test]
    fn an_attempt_too_many_is_found() {
        let more = |run: &mut Evidence| {
            let first = attempt_of(run, What::Order(20, Step::Placed));
            run.attempts.insert(first, run.attempts[first]);
        };
        assert_eq!(found(more), [Problem::Attempts]);
    }

    #[test]
    fn what_nobody_wrote_is_found() {
        let strange = |run: &mut Evidence| {
            let mut attempt = run.attempts[0];
            attempt.id = pillarbox::new_id();
            run.attempts.push(attempt);
        };
        assert_eq!(found(strange), [Problem::Unknown]);
        // A known event with another content is not known either, and the one that was written is missing.
        let changed = |run: &mut Evidence| run.attempts[0].what = What::Order(11, Step::Placed);
        assert_eq!(found(changed), [Problem::Lost, Problem::Unknown]);
    }

    #[test]
    fn an_event_that_is_delivered_and_not_done_is_found() {
        assert_eq!(found(|run| run.stored[0].status = "NEW".into()), [Problem::Unfinished]);
    }

    #[test]
    fn an_interrupted_run_may_leave_events_that_wait_and_nothing_else() {
        let last = What::Order(10, Step::Shipped);
        let cut = |status: &'static str| {
            move |run: &mut Evidence| {
                run.interrupted = true;
                run.attempts.retain(|attempt| attempt.what != last);
                run.stored[2].status = status.into();
            }
        };
        assert_eq!(found(cut("NEW")), []);
        assert_eq!(found(cut("DONE")), [Problem::Lost]);
    }

    #[test]
    fn many_problems_are_counted_and_the_first_ten_shown() {
        let mut run = a_good_run();
        run.attempts.extend(std::iter::repeat_n(run.attempts[0], 25));
        let findings = check(&run);
        let (problem, found) = findings.iter().next().unwrap();
        assert_eq!((problem, found.count), (Problem::Duplicate, 25));
        assert_eq!(found.examples.len(), EXAMPLES);
    }
}
