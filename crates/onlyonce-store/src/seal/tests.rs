use proptest::prelude::*;

use super::*;

fn bytes_from(first: u8) -> [u8; 32] {
    std::array::from_fn(|place| first.wrapping_add(u8::try_from(place).expect("32 places")))
}

fn keyring(firsts: &[u8]) -> Keyring {
    Keyring::new(firsts.iter().map(|first| bytes_from(*first))).expect("the keys differ")
}

fn hex(text: &str) -> Vec<u8> {
    let digits = |place| u8::from_str_radix(&text[place..place + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// L05
#[test]
fn the_id_of_a_key_is_the_beginning_of_its_digest() {
    assert_eq!(KeyId::of(&bytes_from(0)).to_string(), "d193ec225d68e067");
    assert_eq!(keyring(&[0, 9]).first().to_string(), "d193ec225d68e067");
}

/// L05. The vector of draft-irtf-cfrg-xchacha-03, appendix A.3.1: the cipher is the one it is said to be.
#[test]
fn the_cipher_is_xchacha20_poly1305() {
    let key: [u8; 32] = bytes_from(0x80);
    let nonce: [u8; 24] = std::array::from_fn(|place| 0x40 + u8::try_from(place).expect("24 places"));
    let mut text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
                     future, sunscreen would be it."
        .to_vec();
    let tag = XChaCha20Poly1305::new(&key.into())
        .encrypt_inout_detached(&nonce.into(), &hex("50515253c0c1c2c3c4c5c6c7"), text.as_mut_slice().into())
        .expect("a short text");
    assert_eq!(
        text,
        hex("bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb\
             731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452\
             2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9\
             21f9664c97637da9768812f615c68b13b52e")
    );
    assert_eq!(tag.as_slice(), hex("c0875924c1c7987947deafd8780acf49"));
}

/// L05. Bytes that a release has sealed must be readable by those after it.
#[test]
fn what_was_sealed_by_the_first_release_can_be_opened() {
    let sealed = hex(SEALED);
    let plain = keyring(&[0]).open(&Id([0xaa; 32]), Kind::Phase(7), &sealed).expect("the key is there");
    assert_eq!(plain, b"{\"charge\":\"ch_1\"}");
}

// Made by another implementation of XChaCha20-Poly1305.
const SEALED: &str = "d193ec225d68e067404142434445464748494a4b4c4d4e4f5051525354555657af1b6618b1921e73adcea5ddc7c354b0effb9673993b3307e7e82a257bc5c70097";

/// L05
#[test]
fn a_sealed_text_fits_no_other_record_kind_or_number() {
    let keyring = keyring(&[0]);
    let (one, other) = (Id([1; 32]), Id([2; 32]));
    let kinds = [
        Kind::Headers,
        Kind::Body,
        Kind::Request,
        Kind::Evidence,
        Kind::Found,
        Kind::Phase(0),
        Kind::Phase(1),
        Kind::Payload,
    ];
    for sealed_as in kinds {
        let sealed = keyring.seal(&one, sealed_as, b"text");
        for opened_as in kinds {
            let opened = keyring.open(&one, opened_as, &sealed);
            assert_eq!(opened.is_ok(), sealed_as == opened_as, "{sealed_as:?} as {opened_as:?}");
        }
        assert_eq!(keyring.open(&other, sealed_as, &sealed), Err(Unsealable::Altered));
    }
    assert_ne!(message_id("a"), message_id("b"));
}

/// L05
#[test]
fn the_first_key_encrypts_all_decrypt_and_a_missing_one_is_named() {
    let id = Id([1; 32]);
    let (old, both, new) = (keyring(&[0]), keyring(&[9, 0]), keyring(&[9]));
    let by_old = old.seal(&id, Kind::Body, b"old");
    let by_both = both.seal(&id, Kind::Body, b"new");
    assert_eq!(both.open(&id, Kind::Body, &by_old).expect("both keys"), b"old");
    assert_eq!(new.open(&id, Kind::Body, &by_both).expect("sealed with the first"), b"new");
    assert_eq!(new.open(&id, Kind::Body, &by_old), Err(Unsealable::MissingKey(old.first())));
    assert_eq!(old.open(&id, Kind::Body, &by_both), Err(Unsealable::MissingKey(new.first())));
    assert!(Unsealable::MissingKey(old.first()).to_string().contains("d193ec225d68e067"));
}

/// L05
#[test]
fn no_key_and_two_equal_keys_make_no_keyring() {
    assert_eq!(Keyring::new([]).expect_err("no key"), BadKeys::Empty);
    let keys = [bytes_from(1), bytes_from(2), bytes_from(1)];
    let fault = Keyring::new(keys).expect_err("two are equal");
    assert_eq!(fault, BadKeys::Equal(0, 2));
    assert_eq!(fault.to_string(), "keys 1 and 3 are the same; remove one of them");
}

/// L05
#[test]
fn a_keyring_shows_the_ids_of_its_keys_and_nothing_else() {
    assert_eq!(format!("{:?}", keyring(&[0])), "[KeyId(d193ec225d68e067)]");
}

/// L05
#[test]
fn equal_texts_are_sealed_differently_each_time() {
    let keyring = keyring(&[0]);
    let seal = || keyring.seal(&Id([1; 32]), Kind::Body, b"text");
    assert_ne!(seal(), seal());
}

proptest! {
    /// L05
    #[test]
    fn what_was_sealed_is_opened_and_any_flipped_bit_or_missing_byte_is_refused(
        plain in prop::collection::vec(any::<u8>(), 0..300),
        id in any::<[u8; 32]>(),
        place in any::<prop::sample::Index>(),
        bit in 0_u8..8,
    ) {
        let keyring = keyring(&[3, 4]);
        let id = Id(id);
        let mut sealed = keyring.seal(&id, Kind::Body, &plain);
        prop_assert_eq!(sealed.len(), plain.len() + OVERHEAD_BYTES);
        prop_assert_eq!(keyring.open(&id, Kind::Body, &sealed), Ok(plain));
        let shorter = place.index(sealed.len());
        prop_assert!(keyring.open(&id, Kind::Body, &sealed[..shorter]).is_err());
        sealed[shorter] ^= 1 << bit;
        prop_assert!(keyring.open(&id, Kind::Body, &sealed).is_err());
    }
}
