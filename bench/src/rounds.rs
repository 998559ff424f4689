//! Rounds in which the limit and Pillarbox run one after the other, so that noise meets both.

use crate::Result;

/// One value a round and side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) limit: Vec<f64>,
    pub(crate) pillarbox: Vec<f64>,
}

impl Rounds {
    /// Runs both sides so many times; which one goes first alternates.
    pub(crate) async fn run(
        count: usize,
        mut limit: impl AsyncFnMut() -> Result<f64>,
        mut pillarbox: impl AsyncFnMut() -> Result<f64>,
    ) -> Result<Self> {
        let mut rounds = Self::default();
        for round in 0..count {
            if round % 2 == 0 {
                rounds.limit.push(limit().await?);
                rounds.pillarbox.push(pillarbox().await?);
            } else {
                rounds.pillarbox.push(pillarbox().await?);
                rounds.limit.push(limit().await?);
            }
        }
        Ok(rounds)
    }

    /// Pillarbox over the limit, round by round.
    pub(crate) fn ratios(&self) -> Spread {
        let pairs = self.pillarbox.iter().zip(&self.limit);
        Spread::of(pairs.map(|(pillarbox, limit)| pillarbox / limit))
    }
}

/// What a row of values looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
        Self {
            median: f64::midpoint(at(low), at(high)),
            min: at(0),
            max: at(values.len().saturating_sub(1)),
            count: values.len(),
        }
    }
}

/// The value below which this share of the values lies.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list, from a share between 0 and 1"
    )]
    let index = (values.len() as f64 * share) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "counts of a bench are far below 2^52")]
pub(crate) fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max, odd.count), (2.0, 1.0, 3.0, 3));
        assert!((Spread::of([4.0, 1.0, 2.0, 3.0]).median - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_percentile_is_a_value_of_the_list() {
        let mut values: Vec<f64> = (0..100).map(float).collect();
        assert_eq!(percentile(&mut values, 0.5).total_cmp(&50.0), std::cmp::Ordering::Equal);
        assert_eq!(percentile(&mut values, 0.99).total_cmp(&99.0), std::cmp::Ordering::Equal);
    }
}
