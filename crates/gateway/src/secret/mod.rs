//! Secrets of providers at rest: sealed with a key that lies outside the database, and bound to the row that holds them.
//!
//! A sealed secret is text, `v1.KEY.DATA`: the first eight bytes of the key's SHA-256 in hex, then in base64 (URL alphabet,
//! no padding) a random nonce of 12 bytes and what AES-256-GCM makes of the secret (RFC 5116), with the row's name as
//! associated data. So one that was copied to another row, or changed, does not open. Nonces are random: one key may seal
//! some 2^32 secrets (NIST SP 800-38D, 8.3). Where the keys come from is in [`file`]. Not here: the rows.

mod file;
#[cfg(test)]
mod tests;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::PathBuf;

pub use file::FILE;

/// Before what is sealed.
const VERSION: &str = "v1";

/// Bytes of a key.
const LENGTH: usize = 32;

/// Why a secret cannot be sealed or opened. No text holds one.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The key file cannot be used.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// What should be keys is none.
    #[error("{place}: a key is {LENGTH} bytes in base64 (openssl rand -base64 {LENGTH})")]
    NoKey {
        /// Where it stands.
        place: String,
    },
    /// It was sealed with a key that is not here.
    #[error("the secret of {row} was sealed with the key {key}, which this server does not have")]
    UnknownKey {
        /// Whose secret.
        row: String,
        /// The key's name, as sealed secrets have it.
        key: String,
    },
    /// It is no sealed secret, was changed, or belongs to another row.
    #[error("the secret of {0} is damaged, or was sealed for another")]
    Damaged(String),
    /// The system gives no random bytes.
    #[error("the system gives no random numbers")]
    NoRandom,
}

/// A secret that was opened; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderSecret(String);

impl ProviderSecret {
    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for ProviderSecret {
    fn from(secret: String) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for ProviderSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProviderSecret(…)")
    }
}

/// One key.
struct Key {
    /// As sealed secrets name it.
    name: String,
    key: LessSafeKey,
}

impl Key {
    /// From its text; none where that is no key.
    fn parse(text: &str) -> Option<Self> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
        let name = Sha256::digest(&bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self { name, key })
    }
}

/// A new key's text.
fn make_key() -> Result<String, SecretError> {
    Ok(base64::engine::general_purpose::STANDARD.encode(random::<LENGTH>()?))
}

fn random<const N: usize>() -> Result<[u8; N], SecretError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| SecretError::NoRandom)?;
    Ok(bytes)
}

/// The keys of this server, one at least. The first seals; the others open what was sealed before it came.
pub struct Keyring(Vec<Key>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.name)).finish()
    }
}

impl Keyring {
    /// Keys with white space between them, the newest first; `place` names them in errors.
    ///
    /// # Errors
    /// When there is none, or something that is none.
    pub fn parse(text: &str, place: &str) -> Result<Self, SecretError> {
        let keys: Option<Vec<_>> = text.split_ascii_whitespace().map(Key::parse).collect();
        match keys {
            Some(keys) if !keys.is_empty() => Ok(Self(keys)),
            _ => Err(SecretError::NoKey { place: place.to_owned() }),
        }
    }

    /// Seals a secret for a row, whose name is one that no other row has and that stays as it is, such as
    /// `provider_keys/ID`.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn seal(&self, secret: &ProviderSecret, row: &str) -> Result<String, SecretError> {
        let key = &self.0[0];
        let nonce = random::<NONCE_LEN>()?;
        let mut data = secret.0.as_bytes().to_vec();
        let sealed = key.key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(row.as_bytes()),
            &mut data,
        );
        // Only a text of 64 GiB or more is refused.
        sealed.map_err(|_| SecretError::Damaged(row.to_owned()))?;
        Ok(format!("{VERSION}.{}.{}", key.name, BASE64.encode([&nonce[..], &data].concat())))
    }

    /// Opens what was sealed for this row.
    ///
    /// # Errors
    /// When it is none, was changed, was sealed for another row, or with a key that is not here.
    pub fn open(&self, sealed: &str, row: &str) -> Result<ProviderSecret, SecretError> {
        let damaged = || SecretError::Damaged(row.to_owned());
        let (name, data) = parts(sealed).ok_or_else(damaged)?;
        let unknown = || SecretError::UnknownKey { row: row.to_owned(), key: name.to_owned() };
        let key = self.0.iter().find(|key| key.name == name).ok_or_else(unknown)?;
        let mut data = BASE64.decode(data).map_err(|_| damaged())?;
        let (nonce, data) = data.split_at_mut_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let opened = key.key.open_in_place(nonce, Aad::from(row.as_bytes()), data).map_err(|_| damaged())?;
        let text = std::str::from_utf8(opened).map_err(|_| damaged())?;
        Ok(ProviderSecret(text.to_owned()))
    }

    /// Whether the newest key sealed it. Where not, it is opened and sealed again before that key goes.
    #[must_use]
    pub fn is_current(&self, sealed: &str) -> bool {
        parts(sealed).is_some_and(|(name, _)| name == self.0[0].name)
    }
}

/// The key's name and the data of a sealed secret.
fn parts(sealed: &str) -> Option<(&str, &str)> {
    sealed.strip_prefix(VERSION)?.strip_prefix('.')?.split_once('.')
}
