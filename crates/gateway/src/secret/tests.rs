//! Sealing, and the file of the keys.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn secret(text: &str) -> ProviderSecret {
    text.to_owned().into()
}

#[test]
fn a_secret_opens_in_its_own_row_only() {
    let keys = Keyring::parse(&make_key().unwrap(), "here").unwrap();
    let sealed = keys.seal(&secret("sk-123"), "keys/1").unwrap();
    assert!(!sealed.contains("sk-123"));
    assert_eq!(keys.open(&sealed, "keys/1").unwrap().reveal(), "sk-123");
    assert!(matches!(keys.open(&sealed, "keys/2"), Err(SecretError::Damaged(row)) if row == "keys/2"));
    assert_ne!(sealed, keys.seal(&secret("sk-123"), "keys/1").unwrap(), "nobody sees that two are the same");
}

#[test]
fn what_others_can_decrypt_is_what_the_format_says() {
    // AES-256-GCM test case 14 of McGrew and Viega's specification of GCM: key, nonce and text are zero, no further data.
    let keys = Keyring::parse(&format!("{}=", "A".repeat(43)), "here").unwrap();
    let tag = "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919";
    let bytes: Vec<u8> =
        (0..tag.len()).step_by(2).map(|at| u8::from_str_radix(&tag[at..at + 2], 16).unwrap()).collect();
    let sealed = format!("v1.{}.{}", keys.0[0].name, BASE64.encode([&[0; NONCE_LEN][..], &bytes].concat()));
    assert_eq!(keys.open(&sealed, "").unwrap().reveal(), "\0".repeat(16));
}

#[test]
fn nothing_that_is_shown_holds_a_secret_or_a_key() {
    let key = make_key().unwrap();
    let keys = Keyring::parse(&key, "here").unwrap();
    let told = format!("{keys:?} {:?} {:?}", secret("sk-123"), Keyring::parse("sk-123", "here"));
    assert!(!told.contains("sk-123") && !told.contains(&key), "{told}");
}

#[test]
fn an_older_key_opens_and_the_newest_seals() {
    let folder = tempfile::tempdir().unwrap();
    let old = Keyring::load(folder.path(), None).unwrap();
    let sealed = old.seal(&secret("a"), "row").unwrap();
    let both = Keyring::add_key(folder.path()).unwrap();
    assert!(!both.is_current(&sealed));
    let opened = both.open(&sealed, "row").unwrap();
    let again = both.seal(&opened, "row").unwrap();
    assert!(both.is_current(&again));
    let new = Keyring::retire_keys(folder.path()).unwrap();
    assert_eq!(new.open(&again, "row").unwrap().reveal(), "a");
    let gone = new.open(&sealed, "row").unwrap_err();
    assert!(matches!(&gone, SecretError::UnknownKey { key, .. } if sealed.contains(key.as_str())), "{gone}");
    assert_eq!(Keyring::load(folder.path(), None).unwrap().open(&again, "row").unwrap().reveal(), "a");
}

#[test]
fn the_file_is_made_once_and_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let loaded = std::thread::scope(|scope| {
        let loads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| Keyring::load(folder.path(), None).unwrap())).collect();
        loads.into_iter().map(|load| load.join().unwrap()).collect::<Vec<_>>()
    });
    let sealed = loaded[0].seal(&secret("a"), "row").unwrap();
    assert!(loaded.iter().all(|keys| keys.open(&sealed, "row").is_ok()), "all have the same key");
    let path = folder.path().join(FILE);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing lies about");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = Keyring::load(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains(FILE) && error.contains("chmod 600"), "{error}");
}

#[test]
fn the_environment_goes_before_the_file_and_needs_none() {
    let folder = tempfile::tempdir().unwrap();
    let key = make_key().unwrap();
    let sealed = Keyring::parse(&key, "here").unwrap().seal(&secret("a"), "row").unwrap();
    let keys = Keyring::load(folder.path(), Some(&format!("{}\n{key}\n", make_key().unwrap()))).unwrap();
    assert_eq!(keys.open(&sealed, "row").unwrap().reveal(), "a");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    for wrong in ["", " \n", "short", &format!("{key} short"), &key[1..]] {
        let error = Keyring::load(folder.path(), Some(wrong)).unwrap_err().to_string();
        assert!(error.starts_with("HEARTH_SECRET_KEY: a key is 32 bytes"), "{error}");
    }
}

proptest! {
    #[test]
    fn a_changed_byte_is_noticed(text in ".{0,40}", row in ".{0,20}", at in any::<prop::sample::Index>(), bit in 0..7_u32) {
        let keys = Keyring::parse(&make_key().unwrap(), "here").unwrap();
        let sealed = keys.seal(&secret(&text), &row).unwrap();
        let opened = keys.open(&sealed, &row).unwrap();
        prop_assert_eq!(opened.reveal(), &text);
        let mut changed = sealed.into_bytes();
        let at = at.index(changed.len());
        changed[at] ^= 1 << bit;
        let changed = String::from_utf8(changed).unwrap();
        prop_assert!(keys.open(&changed, &row).is_err());
    }
}
