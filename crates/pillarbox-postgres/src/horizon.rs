//! What can still become visible below a position: pure, and where the order of events rests.
//!
//! Numbers become visible out of order: a transaction takes a number and commits it later than others their higher
//! ones. A reader that has passed a number must come back for it, in time and without reading everything again.
//!
//! # The argument
//! A row's transaction id is taken before its number, because it is the first column's default. One pass is one
//! statement. It has one snapshot S; after that was taken, it reads V, the last number given out; and after that N, the
//! next transaction id to be given out.
//!
//! 1. A row with a number up to V has an id below N: its number was taken before V was read, and its id before that.
//! 2. So with respect to S such a row is visible, or rolled back, or its id is *open*: listed in S as running, or in
//!    [xmax(S), N). Everything visible in S up to V was read by the pass if it was exhausted; nothing else below V but
//!    rows of open ids can appear.
//! 3. An id at or above the N of the pass before was given out after that pass read its V, so all its rows lie above
//!    that V: its *floor*. An id that was open in the pass before keeps its floor. An id below the N before that
//!    was not open then is not open now.
//! 4. An id that is open in S has no visible row. One that was open and has ended is probed once, in the statement whose
//!    snapshot first shows it ended: its rows above its floor and up to the position. Above the position the same
//!    statement reads forward. So rows of one snapshot come in the order of their numbers, late ones first.
//!
//! Order per key follows: if 10 and 13 have one key, whose writers waited for each other, whoever sees 13 in a
//! snapshot sees 10 in it. So the pass that reads 13 has read 10 before, or reads it as a late row, or finds it above
//! the position as well. This holds for each pass by itself, and not for a statement that goes on where another
//! stopped: a page of several statements is several passes.
//!
//! The low-water mark is the lowest of the position and all floors of open ids: nothing at or below it can appear.
//! Without memory of an earlier pass (after a takeover) the mark is the floor of every id.
//!
//! What needs no probe costs none: an id that ended while the position was below its floor (in a backlog V is far
//! ahead), and an id that stays open, for hours maybe. Transactions without an id, which only read, are not in sight.

use std::fmt::Write as _;

use pillarbox_core::domain::Seq;
use pillarbox_core::port::Position;

/// What the statement of a pass saw beside its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Horizon {
    /// The snapshot's running ids, ascending.
    pub(crate) running: Vec<u64>,
    /// The snapshot's end: ids from here on were not looked at.
    pub(crate) xmax: u64,
    /// V: the last number given out.
    pub(crate) numbers: i64,
    /// N: the next id to be given out, read after V.
    pub(crate) next: u64,
}

impl Horizon {
    /// From the snapshot's text, the last number, and the age of the transaction id 3, which counts from the next id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut snapshot = words.next()?.split(':');
        let _xmin = snapshot.next()?;
        let xmax: u64 = snapshot.next()?.parse().ok()?;
        let listed = snapshot.next()?.split(',').filter(|id| !id.is_empty());
        let mut running = listed.map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        running.sort_unstable();
        let numbers = words.next()?.parse().ok()?;
        let age: i32 = words.next()?.parse().ok()?;
        // Ids have 64 bits, and the age counts in 32: the next id is the first at or above xmax that fits.
        let next32 = age.cast_unsigned().wrapping_add(3);
        let ahead = next32.wrapping_sub(u32::try_from(xmax & u64::from(u32::MAX)).ok()?);
        Some(Self { running, xmax, numbers, next: xmax + u64::from(ahead) })
    }
}

/// Ids that were open, with the number that all their rows lie above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) floor: i64,
}

/// A position with what its token tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Track {
    /// Pages have been read up to here.
    pub(crate) seq: i64,
    /// V and N of the last pass.
    numbers: i64,
    next: u64,
    open: Vec<Open>,
}

/// How far the rows of a pass were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All late rows, and all rows above the position.
    Everything,
    /// All late rows, and those above the position up to this number.
    Forward(i64),
    /// Late rows up to this number, and none above the position.
    Late(i64),
}

impl Reach {
    /// Of the rows of a pass, which are as many as were asked for if `full`, so many were taken.
    pub(crate) fn of(seqs: &[i64], taken: usize, full: bool, position: i64) -> Self {
        let late = seqs.partition_point(|seq| *seq <= position);
        if taken == seqs.len() && !full {
            Self::Everything
        } else if taken < late || late == seqs.len() {
            Self::Late(taken.checked_sub(1).map_or(i64::MIN, |last| seqs[last]))
        } else {
            Self::Forward(taken.checked_sub(1).map_or(position, |last| seqs[last]))
        }
    }
}

impl Track {
    /// Goes on at a position.
    pub(crate) fn resume(position: &Position) -> Self {
        if let Some(token) = &position.token
            && let Some(mut track) = Self::decode(token)
        {
            if position.seq.0 < track.seq {
                // Lowered for a partition that joined. Floors may come from the mark of the others.
                track.seq = position.seq.0;
                for open in &mut track.open {
                    open.floor = open.floor.min(track.seq);
                }
            }
            return track;
        }
        let mark = position.mark.min(position.seq).0;
        Self { seq: mark, numbers: mark, next: 0, open: Vec::new() }
    }

    /// The ids whose end must be looked for.
    pub(crate) fn to_probe(&self) -> Vec<Open> {
        self.open.iter().copied().filter(|open| open.floor < self.seq).collect()
    }

    /// Whether the numbers have been set back since: what was passed says nothing of those that come now.
    pub(crate) fn is_ahead_of(&self, horizon: &Horizon) -> bool {
        horizon.numbers < self.numbers
    }

    /// Moves on after a pass.
    pub(crate) fn advance(&mut self, horizon: &Horizon, reach: Reach) {
        let mut open = Vec::new();
        for was in &self.open {
            let (still, ended) = split(*was, horizon);
            open.extend(still);
            if let Reach::Late(last) = reach
                && was.floor < self.seq
            {
                // The rest of its late rows is for the next pass.
                open.extend(ended.into_iter().map(|open| Open { floor: open.floor.max(last), ..open }));
            }
        }
        let new = horizon.running.iter().copied().filter(|id| *id >= self.next && *id < horizon.xmax);
        open.extend(new.map(|id| Open { first: id, last: id, floor: self.numbers }));
        let unseen = horizon.xmax.max(self.next)..horizon.next;
        if !unseen.is_empty() {
            open.push(Open { first: unseen.start, last: unseen.end - 1, floor: self.numbers });
        }
        self.open = open;
        self.seq = match reach {
            Reach::Everything => self.seq.max(horizon.numbers),
            Reach::Forward(last) => self.seq.max(last),
            Reach::Late(_) => self.seq,
        };
        self.numbers = self.numbers.max(horizon.numbers);
        self.next = self.next.max(horizon.next);
    }

    /// The position to hand out.
    pub(crate) fn position(&self) -> Position {
        let mark = self.open.iter().map(|open| open.floor).fold(self.seq, i64::min);
        Position { seq: Seq(self.seq), mark: Seq(mark), token: Some(self.encode()) }
    }

    fn encode(&self) -> Box<str> {
        let mut text = format!("{} {} {}", self.seq, self.numbers, self.next);
        for Open { first, last, floor } in &self.open {
            // Writing to a string does not fail.
            let _ = write!(text, " {first} {last} {floor}");
        }
        text.into()
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (seq, numbers) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let next = words.next()?.parse().ok()?;
        let mut open = Vec::new();
        while let Some(first) = words.next() {
            let (last, floor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            open.push(Open { first: first.parse().ok()?, last, floor });
        }
        Some(Self { seq, numbers, next, open })
    }
}

/// Parts ids by a snapshot into those that are still open and those that have ended.
fn split(open: Open, horizon: &Horizon) -> (Vec<Open>, Vec<Open>) {
    let (mut still, mut ended) = (Vec::new(), Vec::new());
    let mut from = open.first;
    let begin = horizon.running.partition_point(|id| *id < open.first);
    for &id in horizon.running[begin..].iter().take_while(|id| **id <= open.last && **id < horizon.xmax) {
        if from < id {
            ended.push(Open { first: from, last: id - 1, ..open });
        }
        still.push(Open { first: id, last: id, ..open });
        from = id + 1;
    }
    if from <= open.last && from < horizon.xmax {
        ended.push(Open { first: from, last: open.last.min(horizon.xmax - 1), ..open });
    }
    if open.last >= horizon.xmax {
        still.push(Open { first: open.first.max(horizon.xmax), ..open });
    }
    (still, ended)
}

#[cfg(test)]
mod tests;
