//! Vectors of the format specification, damage, and the streaming form against the one-shot form.

use super::*;
use crate::random::SeededRandom;
use proptest::prelude::*;

const MASTER_KEY: &[u8] = b"01234567890123456789012345678901";

/// Hands out the nonce 00 01 02 … that the vectors use.
#[derive(Debug)]
struct CountingNonce;

impl Random for CountingNonce {
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        out.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        Ok(())
    }
}

fn ciphers() -> [Cipher; 2] {
    CipherAlgorithm::ALL.map(|algorithm| Cipher::new(algorithm, MASTER_KEY).unwrap())
}

fn seal(cipher: &Cipher, id: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    cipher.seal_into(&SeededRandom::new(1), id, plaintext, &mut sealed).unwrap();
    sealed
}

#[test]
fn ciphertexts_of_kopias_own_tests_open() {
    let zeros = "0".repeat(32);
    let vectors = [
        (
            CipherAlgorithm::Aes256Gcm,
            "aabbccddeeffgghhiijjkkllmmnnoopp",
            "foo",
            "e43ba07f85a6d70c5f1102ca06cf19c597e5f91e527b21f00fb76e8bec3fd1",
        ),
        (
            CipherAlgorithm::ChaCha20Poly1305,
            "aabbccddeeffgghhiijjkkllmmnnoopp",
            "foo",
            "118359f3d4d589d939efbbc3168ae4c77c51bcebce6845fe6ef5d11342faa6",
        ),
        (
            CipherAlgorithm::Aes256Gcm,
            &zeros,
            "quick brown fox jumps over the lazy dog",
            "eaad755a238f1daa4052db2e5ccddd934790b6cca415b3ccfd46ac5746af33d9d30f4400ffa9eb3a64fb1ce21b888c12\
             c043bf6787d4a5c15ad10f21f6a6027ee3afe0",
        ),
        (
            CipherAlgorithm::ChaCha20Poly1305,
            &zeros,
            "quick brown fox jumps over the lazy dog",
            "836d2ba87892711077adbdbe1452d3b2c590bbfdf6fd3387dc6810220a32ec19de862e1a4f865575e328424b5f178afa\
             c1b7eeff11494f719d119b7ebb924d1d0846a3",
        ),
    ];
    for (algorithm, id, plaintext, sealed) in vectors {
        let cipher = Cipher::new(algorithm, MASTER_KEY).unwrap();
        let sealed = hex::decode(sealed).unwrap();
        assert_eq!(cipher.open(id.as_bytes(), &sealed).unwrap(), plaintext.as_bytes());
    }
}

#[test]
fn keys_are_derived_as_the_format_specification_says() {
    let secret = hkdf_sha256_key(MASTER_KEY, SECRET_SALT, b"").unwrap();
    assert_eq!(hex::encode(*secret), "88aac0fcc646ffc04813cc17f4c7a17f8a73b53e4add438898256a7c87ad45d2");
    let other: Vec<u8> = (0x20..0x40).collect();
    let secret = hkdf_sha256_key(&other, SECRET_SALT, b"").unwrap();
    assert_eq!(hex::encode(*secret), "49cbbd8ec38e25389b29de48aa0a383cb3aa37e0e2aa4e02e75c7894aebfacce");

    let cipher = &ciphers()[0];
    let key = cipher.message_key(b"aabbccddeeffgghhiijjkkllmmnnoopp").unwrap();
    assert_eq!(hex::encode(*key), "6c82491c819ee6c89e7bdd065cca8b86c314a7d950dffa92e1c30506f60463ea");
    let key = cipher.message_key(&[b'0'; 32]).unwrap();
    assert_eq!(hex::encode(*key), "e09bf92edcc7890a612c60ef1df18a8affff56d9fecfc7cb0585f1b73eb43169");
}

#[test]
fn a_whole_content_is_sealed_to_the_known_bytes() {
    let master_key: Vec<u8> = (0x20..0x40).collect();
    let id = hex::decode("bc2cf927f9ed52cc29116e6a5cfdbdf9").unwrap();
    let cipher = Cipher::new(CipherAlgorithm::Aes256Gcm, &master_key).unwrap();
    assert_eq!(
        hex::encode(*cipher.message_key(&id).unwrap()),
        "47f900f75dfcdf3e51224bc88e544f5a5c15bc198ecb46135f85233083e419e5"
    );
    let expected = "000102030405060708090a0b5211e421252f37c28a5aad463af16818748887901a";
    let mut appended = b"pack so far".to_vec();
    cipher.seal_into(&CountingNonce, &id, b"hello", &mut appended).unwrap();
    assert_eq!(hex::encode(&appended[11..]), expected);
    let mut placed = [0; 5 + OVERHEAD];
    cipher.seal_to(&CountingNonce, &id, b"hello", &mut placed).unwrap();
    assert_eq!(hex::encode(placed), expected);
    assert!(cipher.seal_to(&CountingNonce, &id, b"hello", &mut placed[1..]).is_err());
    let mut in_place = *b"hello";
    let (nonce, tag) = cipher.seal_in_place(&CountingNonce, &id, &mut in_place).unwrap();
    assert_eq!(hex::encode([&nonce[..], &in_place, &tag].concat()), expected);
}

#[test]
fn the_format_blob_is_sealed_to_the_known_bytes() {
    let unique_id: Vec<u8> = (0x00..0x20).collect();
    let format_key = hex::decode("ffe609844d93eddf89ad495da77bd83e8cec100e27b03a6257d505de6e36094d").unwrap();
    let aes_key = hkdf_sha256_key(&format_key, &unique_id, b"AES").unwrap();
    assert_eq!(hex::encode(*aes_key), "40b4dbe53119dcba4a63bfdcda08da6f0c89041d64355962e8a2076796626bc2");
    let additional = hkdf_sha256_key(&format_key, &unique_id, b"CHECKSUM").unwrap();
    assert_eq!(hex::encode(*additional), "d0d652b890ca4d62b340f8466bb95997f7a4a61a1c005a5c7153601dea229045");

    let cipher = FormatCipher::new(&format_key, &unique_id).unwrap();
    let sealed = cipher.seal(&CountingNonce, b"{}").unwrap();
    assert_eq!(hex::encode(&sealed), "000102030405060708090a0bac71a207461601d094a3d61e786bac84751d");
    assert_eq!(cipher.open(&sealed).unwrap().as_slice(), b"{}");
    let stranger = FormatCipher::new(&[7; 32], &unique_id).unwrap();
    assert_eq!(stranger.open(&sealed), Err(Error::NotAuthentic));
    assert!(matches!(cipher.open(&sealed[..27]), Err(Error::Corrupt { .. })));
}

#[test]
fn no_changed_bit_and_no_other_id_or_key_opens() {
    for cipher in ciphers() {
        let sealed = seal(&cipher, b"id", b"some plaintext");
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(cipher.open(b"id", &damaged), Err(Error::NotAuthentic), "bit {bit}");
        }
        assert_eq!(cipher.open(b"other", &sealed), Err(Error::NotAuthentic));
        let stranger = Cipher::new(cipher.algorithm(), b"another master key").unwrap();
        assert_eq!(stranger.open(b"id", &sealed), Err(Error::NotAuthentic));
        for length in 0..sealed.len() {
            assert!(cipher.open(b"id", &sealed[..length]).is_err(), "{length} bytes");
            assert!(cipher.open_in_place(b"id", &mut sealed[..length].to_vec()).is_err(), "{length} bytes");
        }
    }
}

#[test]
fn a_stream_of_the_wrong_length_is_refused() {
    for cipher in ciphers() {
        let sealed = seal(&cipher, b"id", b"some plaintext");
        let length = sealed.len() as u64;
        let mut long = cipher.verify_stream(b"id", length).unwrap();
        long.update(&sealed).unwrap();
        assert!(matches!(long.update(b"x"), Err(Error::Corrupt { .. })));
        let mut short = cipher.verify_stream(b"id", length).unwrap();
        short.update(&sealed[1..]).unwrap();
        assert!(matches!(short.finish(), Err(Error::Corrupt { .. })));
        for impossible in [0, 27, u64::MAX] {
            assert!(matches!(cipher.verify_stream(b"id", impossible), Err(Error::Corrupt { .. })));
        }
    }
}

#[test]
fn names_lead_back_to_their_cipher() {
    for algorithm in CipherAlgorithm::ALL {
        assert_eq!(CipherAlgorithm::from_name(algorithm.name()), Ok(algorithm));
    }
    assert!(CipherAlgorithm::from_name("NONE").is_err());
}

/// Feeds `sealed` to a verifier in pieces of the given sizes.
fn verify(cipher: &Cipher, id: &[u8], sealed: &[u8], pieces: &[usize]) -> Result<StreamDecryptor> {
    let mut verifier = cipher.verify_stream(id, sealed.len() as u64)?;
    let (mut rest, mut sizes) = (sealed, pieces.iter().cycle());
    while !rest.is_empty() {
        let (piece, left) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
        verifier.update(piece)?;
        rest = left;
    }
    verifier.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_sealed_opens_in_every_way(
        plaintext in prop::collection::vec(any::<u8>(), 0..5000),
        id in prop::collection::vec(any::<u8>(), 0..40),
        pieces in prop::collection::vec(1usize..700, 1..8),
        damaged_bit in any::<prop::sample::Index>(),
    ) {
        for cipher in ciphers() {
            let sealed = seal(&cipher, &id, &plaintext);
            prop_assert_eq!(sealed.len(), plaintext.len() + OVERHEAD);
            prop_assert_eq!(&cipher.open(&id, &sealed).unwrap(), &plaintext);
            let mut in_place = sealed.clone();
            prop_assert_eq!(&*cipher.open_in_place(&id, &mut in_place).unwrap(), &plaintext[..]);

            let mut decryptor = verify(&cipher, &id, &sealed, &pieces).unwrap();
            prop_assert_eq!(decryptor.plaintext_len(), plaintext.len() as u64);
            // The pieces in reverse order, to seek as well.
            let mut body = sealed[NONCE_LEN..sealed.len() - TAG_LEN].to_vec();
            let piece = pieces[0];
            for (i, chunk) in body.chunks_mut(piece).enumerate().rev() {
                decryptor.decrypt((i * piece) as u64, chunk).unwrap();
            }
            prop_assert_eq!(&body, &plaintext);
            prop_assert!(decryptor.decrypt(plaintext.len() as u64, &mut [0]).is_err());
            prop_assert!(decryptor.decrypt(u64::MAX, &mut [0]).is_err());

            let bit = damaged_bit.index(sealed.len() * 8);
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(verify(&cipher, &id, &damaged, &pieces).err(), Some(Error::NotAuthentic));
        }
    }

    #[test]
    fn arbitrary_bytes_never_open_nor_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for cipher in ciphers() {
            prop_assert!(cipher.open(b"id", &bytes).is_err());
            prop_assert!(verify(&cipher, b"id", &bytes, &[7]).is_err());
        }
    }
}
