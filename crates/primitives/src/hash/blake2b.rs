//! BLAKE2b with a key and digests of 32 bytes: in our own kernel where the processor has AVX-512, otherwise in the
//! library's.

use super::wide::Wide;
use super::{lanes, longest_first};
use zeroize::Zeroizing;

/// Up to this length, our kernel hashes a message that is alone sooner than the library, since it knows the state behind
/// the key. Of longer ones the library hashes more: it turns words by ways other than rotations, which take some
/// processors two cycles each.
const SHORT: usize = 2 << 10;

/// The function with its key.
pub(super) struct Blake2b {
    key: Zeroizing<Vec<u8>>,
    wide: Option<Wide>,
}

impl Blake2b {
    /// `key` has at most 64 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        Blake2b { key: Zeroizing::new(key.to_vec()), wide: Wide::new(key) }
    }

    /// How many messages [`Blake2b::hash_many`] works on at the same time.
    pub(super) fn lanes(&self) -> usize {
        if self.wide.is_some() { Wide::LANES } else { blake2b_simd::many::degree() }
    }

    /// Hands the hash of the concatenation of `parts` to `done`.
    pub(super) fn hash_parts<T>(&self, parts: &[&[u8]], done: impl FnOnce(&[u8]) -> T) -> T {
        match (&self.wide, parts) {
            (Some(wide), [message]) if message.len() <= SHORT => return done(&wide.hash(message)),
            _ => {}
        }
        let mut state = self.params().to_state();
        parts.iter().for_each(|part| _ = state.update(part));
        done(state.finalize().as_bytes())
    }

    /// Hands the hash of each of the first `limit` messages, with its number, to `done`.
    pub(super) fn hash_many(&self, messages: &[&[u8]], limit: usize, mut done: impl FnMut(usize, &[u8])) {
        let order = longest_first(messages, limit);
        let ordered = order.iter().map(|&i| (i, messages[i]));
        match &self.wide {
            Some(wide) => wide.hash_many(ordered, |i, hash| done(i, &hash)),
            None => lanes::hash_many(&self.params(), ordered, |i, hash| done(i, hash.as_bytes())),
        }
    }

    /// The digest has 32 bytes whatever is kept of it: its length is a parameter of the function, and the 128-bit
    /// variant truncates the 256-bit one.
    fn params(&self) -> blake2b_simd::Params {
        let mut params = blake2b_simd::Params::new();
        params.hash_length(32).key(&self.key);
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: usize = blake2b_simd::BLOCKBYTES;

    /// Both ways, also where only one of them would be taken. Without AVX-512 they are the same.
    fn both(key: &[u8]) -> [Blake2b; 2] {
        let library = Blake2b { key: Zeroizing::new(key.to_vec()), wide: None };
        assert_eq!(library.lanes(), blake2b_simd::many::degree());
        [Blake2b::new(key), library]
    }

    fn expected(key: &[u8], message: &[u8]) -> Vec<u8> {
        blake2b_simd::Params::new().hash_length(32).key(key).hash(message).as_bytes().to_vec()
    }

    fn assert_same(key: &[u8], messages: &[&[u8]]) {
        let expected: Vec<Vec<u8>> = messages.iter().map(|message| expected(key, message)).collect();
        for blake2b in both(key) {
            let mut hashes: Vec<Vec<u8>> = vec![Vec::new(); messages.len()];
            blake2b.hash_many(messages, messages.len(), |i, hash| hashes[i].extend(hash));
            assert!(hashes == expected, "{} lanes, {} messages", blake2b.lanes(), messages.len());
            for (message, expected) in messages.iter().zip(&expected) {
                let (head, tail) = message.split_at(message.len() / 3);
                assert!(
                    blake2b.hash_parts(&[head, tail], |hash| hash == expected),
                    "{} bytes",
                    message.len()
                );
                assert!(blake2b.hash_parts(&[message], |hash| hash == expected), "{} bytes", message.len());
            }
        }
    }

    fn data(len: usize) -> Vec<u8> {
        (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    #[test]
    fn lengths_around_the_ends_of_blocks_hash_like_single_messages() {
        let data = data(8 * BLOCK + 100);
        let lengths =
            (0..8).flat_map(|blocks| [0, 1, 2, 63, 64, 65, 126, 127].map(|more| blocks * BLOCK + more));
        for length in lengths {
            // Alone, in half of the lanes, in all of them, and beside longer and shorter messages.
            for count in [1, 4, 8] {
                let messages: Vec<&[u8]> = (0..count).map(|n| &data[n..][..length]).collect();
                assert_same(b"some key", &messages);
                let messages: Vec<&[u8]> = (0..count).map(|n| &data[..length.abs_diff(5 * n)]).collect();
                assert_same(b"", &messages);
            }
        }
    }

    #[test]
    fn batches_of_any_size_hash_like_single_messages() {
        let data = data(100_000);
        for count in 0..=40 {
            let equal: Vec<&[u8]> = (0..count).map(|n| &data[n..][..200]).collect();
            assert_same(b"some key", &equal);
            let different: Vec<&[u8]> = (0..count).map(|n| &data[n..][..n * 7919 % 3000]).collect();
            assert_same(b"some key", &different);
            // One that outlasts all others by far, and takes turns with them.
            let one_long: Vec<&[u8]> =
                (0..count).map(|n| if n == 1 { &data[..] } else { &data[n..900] }).collect();
            assert_same(b"some key", &one_long);
        }
    }

    #[test]
    fn keys_of_any_length_hash_like_single_messages() {
        let data = data(1000);
        for length in 0..=blake2b_simd::KEYBYTES {
            let messages: Vec<&[u8]> = [0, 1, 128, 129, 1000].map(|length| &data[..length]).into();
            assert_same(&data[..length], &messages);
        }
    }

    #[test]
    fn a_few_long_messages_hash_side_by_side_like_one_by_one() {
        let data = data(1_000_000);
        for count in 1..20 {
            // Of many lengths, two of them equal, from where the library's lanes are looked after on.
            let length = |n: usize| lanes::LONG + n / 2 * 37_111 % 150_000;
            let messages: Vec<&[u8]> = (0..count).map(|n| &data[n * 1000..][..length(n)]).collect();
            let degree = blake2b_simd::many::degree();
            assert_eq!(lanes::suit(messages.iter().copied()), count > 2 && count <= 8 * degree);
            assert_same(b"some key", &messages);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn random_batches_hash_like_single_messages(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..40),
            key in prop::collection::vec(any::<u8>(), 0..=64),
        ) {
            assert_same(&key, &messages.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
