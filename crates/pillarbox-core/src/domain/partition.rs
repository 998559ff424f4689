//! The 256 partitions: who delivers an event is decided by the partition it lies in.

use std::{fmt, ops::BitOrAssign};

use super::Key;

/// One of the 256 parts of an outbox; at most one live node owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u8);

impl Partition {
    /// How many there are. Fixed: a key must map to the same partition for ever.
    pub const COUNT: usize = 256;

    /// The partition of a key: MurmurHash3 (x86, 32 bit, seed 0) of its UTF-8 bytes, modulo 256.
    pub fn of_key(key: &Key) -> Self {
        Self(murmur3_x86_32(key.as_str().as_bytes(), 0).to_le_bytes()[0])
    }

    /// Every partition in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of partitions, as 256 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PartitionSet([u64; 4]);

impl PartitionSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; 4]);
    /// The set of all partitions.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// Adds one; says whether it was missing.
    pub fn insert(&mut self, partition: Partition) -> bool {
        let missing = !self.contains(partition);
        self.0[usize::from(partition.0 / 64)] |= 1 << (partition.0 % 64);
        missing
    }

    /// Takes one out; says whether it was there.
    pub fn remove(&mut self, partition: Partition) -> bool {
        let present = self.contains(partition);
        self.0[usize::from(partition.0 / 64)] &= !(1 << (partition.0 % 64));
        present
    }

    /// Whether a partition is in the set.
    pub fn contains(&self, partition: Partition) -> bool {
        self.0[usize::from(partition.0 / 64)] >> (partition.0 % 64) & 1 == 1
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is in it.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Its partitions in order.
    pub fn iter(&self) -> impl Iterator<Item = Partition> + '_ {
        Partition::all().filter(|partition| self.contains(*partition))
    }
}

impl FromIterator<Partition> for PartitionSet {
    fn from_iter<I: IntoIterator<Item = Partition>>(partitions: I) -> Self {
        let mut set = Self::EMPTY;
        for partition in partitions {
            set.insert(partition);
        }
        set
    }
}

impl BitOrAssign for PartitionSet {
    fn bitor_assign(&mut self, other: Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }
}

impl fmt::Debug for PartitionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|p| p.0)).finish()
    }
}

/// MurmurHash3 in its 32-bit form for x86, as Austin Appleby published it.
pub fn murmur3_x86_32(bytes: &[u8], seed: u32) -> u32 {
    fn scramble(word: u32) -> u32 {
        word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
    }

    let (words, tail) = bytes.as_chunks::<4>();
    let mut hash = words.iter().fold(seed, |hash, word| {
        (hash ^ scramble(u32::from_le_bytes(*word))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    let last = tail.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    hash ^= scramble(last);

    // The length enters modulo 2^32, as in the reference.
    #[expect(clippy::cast_possible_truncation, reason = "the reference hashes the length modulo 2^32")]
    let length = bytes.len() as u32;
    hash ^= length;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn published_hash_vectors_hold() {
        let vectors: [(&[u8], u32, u32); 12] = [
            (b"", 0, 0),
            (b"", 1, 0x514e_28b7),
            (b"", 0xffff_ffff, 0x81f1_6f39),
            (&[0xff; 4], 0, 0x7629_3b50),
            (&[0x21, 0x43, 0x65, 0x87], 0, 0xf55b_516b),
            (&[0x21, 0x43, 0x65, 0x87], 0x5082_edee, 0x2362_f9de),
            (&[0x21, 0x43, 0x65], 0, 0x7e4a_8634),
            (&[0x21, 0x43], 0, 0xa0f7_b07a),
            (&[0x21], 0, 0x7266_1cf4),
            (&[0; 4], 0, 0x2362_f9de),
            (&[0], 0, 0x514e_28b7),
            (b"The quick brown fox jumps over the lazy dog", 0x9747_b28c, 0x2fa8_26cd),
        ];
        for (bytes, seed, hash) in vectors {
            assert_eq!(murmur3_x86_32(bytes, seed), hash, "{bytes:02x?} seed {seed:#x}");
        }
    }

    #[test]
    fn keys_spread_over_all_partitions() {
        let mut counts = [0_u32; Partition::COUNT];
        for n in 0..256_000 {
            counts[usize::from(Partition::of_key(&Key::from(format!("order-{n}"))).0)] += 1;
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn a_set_holds_what_was_put_in(numbers in proptest::collection::btree_set(any::<u8>(), 0..256)) {
            let mut set: PartitionSet = numbers.iter().copied().map(Partition).collect();
            prop_assert_eq!(set.len(), numbers.len());
            prop_assert!(set.iter().map(|p| p.0).eq(numbers.iter().copied()));
            for number in &numbers {
                prop_assert!(set.remove(Partition(*number)));
            }
            prop_assert!(set.is_empty());
        }
    }
}
