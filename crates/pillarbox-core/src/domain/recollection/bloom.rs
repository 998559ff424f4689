//! A set of ids in a few bits of each, which may take a stranger for one of its own, and never one of its own for a stranger.

use std::{
    fmt,
    hash::{DefaultHasher, Hasher as _},
};

/// A Bloom filter: of ids that were not inserted it takes less than one in 10,000 for known.
///
/// It begins with as many bits as it may ever have, since nobody knows how many ids will come, and is folded to the size that they
/// need when all are in.
#[derive(Clone)]
pub struct Bloom {
    /// A power of two of them.
    words: Vec<u64>,
    inserted: usize,
}

/// Bits for each id, at the least.
const BITS: usize = 20;
/// How many of them are set. Fourteen would be the best of 20 bits, and twelve are enough for the promise.
const PROBES: usize = 12;
/// 4 MiB.
const MOST_WORDS: usize = 1 << 19;
/// In fewer bits ids would meet in all of their places.
const LEAST_WORDS: usize = 1 << 6;

impl Bloom {
    /// How many ids it takes: about 1.68 million. With more of them it errs more often than it promises.
    pub const MOST: usize = MOST_WORDS * WORD / BITS;

    /// An empty one, with room for [`Self::MOST`].
    pub fn new() -> Self {
        Self { words: vec![0; MOST_WORDS], inserted: 0 }
    }

    /// Inserts an id.
    pub fn insert(&mut self, id: &[u8]) {
        let words = self.words.len();
        for (word, bit) in places(id, words) {
            self.words[word] |= bit;
        }
        self.inserted += 1;
    }

    /// Gives back the room that its ids do not need. What is inserted later may be too much for it.
    #[must_use]
    pub fn shrunk(mut self) -> Self {
        while self.words.len() > LEAST_WORDS && self.words.len() / 2 * WORD >= self.inserted * BITS {
            // A place is a number modulo the length: that of the half is the same of both halves.
            let upper = self.words.split_off(self.words.len() / 2);
            self.words.iter_mut().zip(upper).for_each(|(word, other)| *word |= other);
        }
        self.words.shrink_to_fit();
        self
    }

    /// Whether an id may have been inserted. `false` is certain.
    pub fn may_have(&self, id: &[u8]) -> bool {
        places(id, self.words.len()).all(|(word, bit)| self.words[word] & bit != 0)
    }

    /// How many ids were inserted, those counted twice that came twice.
    pub fn inserted(&self) -> usize {
        self.inserted
    }
}

/// Bits of a word.
const WORD: usize = 64;

/// The places of an id among so many words, a power of two: each a word, and a bit in it.
fn places(id: &[u8], words: usize) -> impl Iterator<Item = (usize, u64)> {
    // A generator's multiplier (Steele and Vigna, 2021): every number that follows depends on all bits of the hash below it.
    const NEXT: u64 = 0xf135_7aea_2e62_a9c5;
    let mut hasher = DefaultHasher::new();
    hasher.write(id);
    let numbers = std::iter::successors(Some(hasher.finish()), |number| Some(number.wrapping_mul(NEXT)));
    numbers.take(PROBES).map(move |number| {
        let upper = usize::try_from(number >> 32).unwrap_or(0);
        ((upper / WORD) & (words - 1), 1 << (upper % WORD))
    })
}

impl Default for Bloom {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Bloom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bloom")
            .field("bytes", &(self.words.len() * 8))
            .field("inserted", &self.inserted)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of<T: AsRef<[u8]>>(ids: impl IntoIterator<Item = T>) -> Bloom {
        let mut bloom = Bloom::new();
        ids.into_iter().for_each(|id| bloom.insert(id.as_ref()));
        bloom
    }

    /// Of strangers that end in a number, how many of so many are taken for known.
    fn mistakes(bloom: &Bloom, strangers: usize, id: impl Fn(usize) -> String) -> usize {
        (0..strangers).filter(|n| bloom.may_have(id(*n).as_bytes())).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_was_inserted_is_known_before_and_after_it_is_folded(
            ids in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..500),
        ) {
            let bloom = of(&ids);
            prop_assert!(ids.iter().all(|id| bloom.may_have(id)));
            let bloom = bloom.shrunk();
            prop_assert!(ids.iter().all(|id| bloom.may_have(id)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Whatever their number, and however like each other they are: random ones, and numbers in a row.
        #[test]
        fn of_strangers_fewer_than_one_in_10_000_are_taken_for_known(seed: u64, count in 1_usize..60_000, in_a_row: bool) {
            const STRANGERS: usize = 100_000;
            let mut random = fastrand::Rng::with_seed(seed);
            let (bloom, mistakes) = if in_a_row {
                let id = |n: usize| format!("{seed}-{n:08}");
                let bloom = of((0..count).map(id)).shrunk();
                let mistakes = mistakes(&bloom, STRANGERS, |n| id(n + count));
                (bloom, mistakes)
            } else {
                let bloom = of((0..count).map(|_| format!("{:032x}", random.u128(..)))).shrunk();
                let mistakes = mistakes(&bloom, STRANGERS, |n| format!("{seed}-{n}"));
                (bloom, mistakes)
            };
            // Seven are expected at the most; that it were thirty by chance is out of the question.
            prop_assert!(mistakes < 30, "{mistakes} of {STRANGERS} by {bloom:?}");
        }
    }

    #[test]
    fn when_it_is_full_it_keeps_its_promise() {
        let bloom = of((0..Bloom::MOST).map(|n| n.to_string())).shrunk();
        let mistakes = mistakes(&bloom, 1_000_000, |n| format!("stranger-{n}"));
        assert!(mistakes < 100, "{mistakes} of a million");
    }

    #[test]
    fn it_has_at_most_four_mebibytes_and_gives_back_what_it_does_not_need() {
        for (count, bytes) in [(0, 512), (200, 512), (205, 1_024), (200_000, 512 << 10), (Bloom::MOST, 4 << 20)] {
            let mut bloom = Bloom { words: vec![0; MOST_WORDS], inserted: count }.shrunk();
            bloom.words.shrink_to_fit();
            assert_eq!(bloom.words.capacity() * 8, bytes, "{count}");
        }
    }

    #[test]
    fn an_empty_one_knows_nothing() {
        assert_eq!(mistakes(&Bloom::new().shrunk(), 100_000, |n| n.to_string()), 0);
    }
}
