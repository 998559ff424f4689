//! Where the reading stands: what the token of a position holds.
//!
//! Between the low-water mark and the newest number that was read lie numbers without a row: of transactions that are
//! still open, that were rolled back, or whose rows are gone. A row that comes late can only come there. So a page
//! reads on above the newest number, and in the same statement looks at these gaps again; what was read before is
//! not touched, however long a transaction keeps the mark where it is. The gaps are kept in the position's token. When
//! there are many, those that lie close are looked at as one, with the rows between them.

use std::fmt::Write as _;

use pillarbox_core::domain::Seq;

/// How many ranges a statement looks at.
pub(crate) const RANGES: usize = 16;

/// Ranges of numbers without a row, in ascending order, from the first to the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps(Vec<(i64, i64)>);

impl Gaps {
    /// The gaps in a token up to a number: what lies above it is read anyway.
    pub(crate) fn read(token: Option<&str>, up_to: Seq) -> Self {
        let range = |text: &str| {
            let (first, last) = text.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        let ranges = token.unwrap_or_default().split(',').filter_map(range);
        let below = |(first, last): (i64, i64)| (first <= up_to.0).then(|| (first, last.min(up_to.0)));
        Self(ranges.filter_map(below).collect())
    }

    pub(crate) fn token(&self) -> Option<Box<str>> {
        let mut text = String::new();
        for (first, last) in &self.0 {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{comma}{first}-{last}");
        }
        (!text.is_empty()).then(|| text.into())
    }

    /// Adds a range above all others.
    pub(crate) fn push(&mut self, first: Seq, last: Seq) {
        if first <= last {
            self.0.push((first.0, last.0));
        }
        if self.0.len() > RANGES * 2 {
            self.merge();
        }
    }

    /// Forgets what lies at or below a number.
    pub(crate) fn pass(&mut self, mark: Seq) {
        self.0.retain_mut(|(first, last)| {
            *first = (*first).max(mark.0 + 1);
            first <= last
        });
    }

    /// At most as many ranges as a statement looks at.
    pub(crate) fn ranges(&mut self) -> &[(i64, i64)] {
        self.merge();
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Joins those that lie closest, until there are few enough.
    fn merge(&mut self) {
        while self.0.len() > RANGES {
            let distance = |at: &usize| self.0[at + 1].0 - self.0[*at].1;
            let Some(at) = (0..self.0.len() - 1).min_by_key(distance) else { return };
            self.0[at].1 = self.0[at + 1].1;
            self.0.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(ranges: &[(i64, i64)]) -> Gaps {
        let mut gaps = Gaps::default();
        for (first, last) in ranges {
            gaps.push(Seq(*first), Seq(*last));
        }
        gaps
    }

    #[test]
    fn a_token_gives_back_its_gaps() {
        let some = gaps(&[(3, 5), (9, 9)]);
        assert_eq!(some.token().as_deref(), Some("3-5,9-9"));
        assert_eq!(Gaps::read(some.token().as_deref(), Seq(100)), some);
        assert_eq!(Gaps::default().token(), None);
        assert_eq!(Gaps::read(None, Seq(100)), Gaps::default());
    }

    #[test]
    fn a_lowered_position_keeps_the_gaps_below_it() {
        let token = gaps(&[(3, 5), (9, 12), (20, 20)]).token();
        assert_eq!(Gaps::read(token.as_deref(), Seq(10)), gaps(&[(3, 5), (9, 10)]));
        assert_eq!(Gaps::read(token.as_deref(), Seq(2)), Gaps::default());
    }

    #[test]
    fn what_the_mark_has_passed_is_forgotten() {
        let mut some = gaps(&[(3, 5), (9, 12), (20, 20)]);
        some.pass(Seq(10));
        assert_eq!(some, gaps(&[(11, 12), (20, 20)]));
    }

    #[test]
    fn many_gaps_become_few_that_cover_them_all() {
        let many: Vec<_> =
            (0..1_000).map(|n| (n * 3 + i64::from(n > 500) * 1_000, n * 3 + i64::from(n > 500) * 1_000)).collect();
        let mut some = gaps(&many);
        let few = some.ranges().to_vec();
        assert!(few.len() <= RANGES);
        for (number, _) in many {
            assert!(few.iter().any(|(first, last)| (first..=last).contains(&&number)), "{number} is lost");
        }
        assert!(
            !few.iter().any(|(first, last)| (first..=last).contains(&&1_600)),
            "the widest distance stays: {few:?}"
        );
    }
}
