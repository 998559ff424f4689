//! What can happen, and how likely it is.

use proptest::prelude::*;

/// Picks one of however many there are.
pub(super) type Index = u8;

#[derive(Clone, Debug)]
pub(super) enum Step {
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

pub(super) fn step() -> impl Strategy<Value = Step> {
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
