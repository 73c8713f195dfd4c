//! Keys of providers that an account keeps in the store, sealed (`secret`), each for one gateway and under an alias.
//!
//! A request uses those of the alias that `cf-aig-byok-alias` names, else those that are marked as default, else those
//! of the alias `default`; several are used in turn by their weights. They go before keys of the settings. A secret is
//! opened when it is first used after a change, and shown never. One may have a limit of requests, over which the next key
//! in turn stands in. Not here: which key goes first, the client's or this
//! one (`call`).

#[cfg(test)]
mod tests;

use crate::account::{check_id, number};
use crate::credential::Credential;
use crate::directory::changed;
use crate::policy::{Rule, Technique};
use crate::provider::{Configured, PROVIDERS, ProviderKey, Quota};
use crate::secret::{Keyring, ProviderSecret, SecretError};
use crate::{DEFAULT, Gateway, custom};
use protocol::{Error, ErrorKind};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use store::{Part, Row, Value};

/// The tables.
pub const TABLES: Part =
    Part { name: "provider keys", steps: &[include_str!("tables_1.sql"), include_str!("tables_2.sql")] };

/// Names the alias whose keys are used.
pub(crate) const ALIAS: &str = "cf-aig-byok-alias";

/// Longest secret, in bytes; a service account's file has some thousands.
const SECRET_MAX: usize = 16 << 10;

/// The greatest weight.
const WEIGHT_MAX: u32 = 100;

/// The greatest number of requests of a limit, and its longest time in seconds.
const LIMIT_MAX: (u64, u64) = (1_000_000_000, 31 * 86_400);

/// Where the keys lie with which secrets are sealed.
#[derive(Clone, Debug)]
pub struct SecretPlace {
    /// The folder of the key file.
    pub folder: PathBuf,
    /// The keys, where the environment has them.
    pub environment: Option<String>,
}

/// A key that is kept, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptKey {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub account: String,
    /// The gateway that it is for.
    pub gateway: String,
    /// The provider's slug.
    pub provider: String,
    /// By what a request names it.
    pub alias: String,
    /// Whether it is used by requests that name no alias.
    pub is_default: bool,
    /// Its share among the keys of its alias.
    pub weight: u32,
    /// How often it may be used, where that is limited.
    pub limit: Option<KeyLimit>,
    /// The last characters, for people.
    pub preview: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub modified: u64,
}

/// How often a key may be used, over all servers on one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimit {
    /// So many requests.
    pub requests: u64,
    /// In so many seconds.
    pub period: u64,
}

/// A wish for a key to be kept, or to be as this.
#[derive(Clone, Debug)]
pub struct NewKept {
    /// The account.
    pub account: String,
    /// The gateway.
    pub gateway: String,
    /// The provider's slug.
    pub provider: String,
    /// By what a request names it.
    pub alias: String,
    /// Whether it is used by requests that name no alias.
    pub is_default: bool,
    /// Its share among the keys of its alias, from 1 to 100.
    pub weight: u32,
    /// How often it may be used, where that is limited.
    pub limit: Option<KeyLimit>,
    /// The key itself; empty where one that is kept stays.
    pub secret: ProviderSecret,
}

/// A key and its sealed secret.
#[derive(Debug)]
pub(crate) struct Sealed {
    key: KeptKey,
    secret: String,
}

/// For which requests a provider with kept keys was made: account, gateway, provider, alias.
type Place = (String, String, String, Option<String>);

/// The provider of the settings or of the account, and what was made of it.
type Made = (Arc<Configured>, Arc<Configured>);

/// The keys of all accounts, and the providers that were made with them.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    keys: Vec<Sealed>,
    /// With what each was made of, so that other settings make it anew.
    made: Mutex<HashMap<Place, Made>>,
}

/// Providers with kept keys that are remembered; the names of aliases come from callers, but must be there.
const MADE_MAX: usize = 10_000;

const COLUMNS: &str = "id, account, gateway, provider, alias, is_default, weight, secret, preview, created,
    modified, rate_limit, rate_limit_period";

/// All keys that are kept.
pub(crate) fn read(work: &store::Work<'_>) -> Result<Kept, store::Error> {
    let sql = format!("SELECT {COLUMNS} FROM gateway_provider_keys ORDER BY created, id");
    let rows = work.query(&sql, &[])?;
    Ok(Kept { keys: rows.iter().map(row).collect::<Result<_, _>>()?, made: Mutex::default() })
}

fn row(row: &Row) -> Result<Sealed, store::Error> {
    let number = |column: usize| row.optional_integer(column).map(|number| number.map(i64::unsigned_abs));
    let key = KeptKey {
        id: row.text(0)?.to_owned(),
        account: row.text(1)?.to_owned(),
        gateway: row.text(2)?.to_owned(),
        provider: row.text(3)?.to_owned(),
        alias: row.text(4)?.to_owned(),
        is_default: row.integer(5)? != 0,
        weight: u32::try_from(row.integer(6)?).unwrap_or(1),
        limit: number(11)?.zip(number(12)?).map(|(requests, period)| KeyLimit { requests, period }),
        preview: row.text(8)?.to_owned(),
        created: row.integer(9)?.unsigned_abs(),
        modified: row.integer(10)?.unsigned_abs(),
    };
    Ok(Sealed { key, secret: row.text(7)?.to_owned() })
}

/// What a sealed secret is bound to.
fn bound_to(id: &str) -> String {
    format!("provider_keys/{id}")
}

/// The end of a secret that is long enough for that to tell little.
pub(crate) fn preview(secret: &str) -> String {
    let characters: Vec<char> = secret.chars().collect();
    let shown = if characters.len() >= 16 { 4 } else { 0 };
    format!("…{}", characters[characters.len() - shown..].iter().collect::<String>())
}

impl NewKept {
    /// What of it is wrong.
    fn check(&self) -> Result<(), Error> {
        let wrong = |name: &str, expected: &str| {
            Err(Error::invalid(name, format!("Invalid value for '{name}': expected {expected}")))
        };
        check_id("alias", &self.alias)?;
        let is_custom = self.provider.strip_prefix("custom-").is_some_and(|name| !name.is_empty());
        if !is_custom && !PROVIDERS.iter().any(|provider| provider.slug == self.provider) {
            let shown: String = self.provider.chars().take(64).collect();
            let message = format!("Invalid value for 'provider_slug': there is no provider '{shown}'");
            return Err(Error::invalid("provider_slug", message));
        }
        check_id("provider_slug", &self.provider)?;
        if self.weight == 0 || self.weight > WEIGHT_MAX {
            return wrong("weight", &format!("1 to {WEIGHT_MAX}"));
        }
        if let Some(KeyLimit { requests, period }) = self.limit {
            if requests == 0 || requests > LIMIT_MAX.0 {
                return wrong("rate_limit", &format!("1 to {} requests", LIMIT_MAX.0));
            }
            if period == 0 || period > LIMIT_MAX.1 {
                return wrong("rate_limit_period", &format!("1 to {} seconds", LIMIT_MAX.1));
            }
        }
        Ok(())
    }

    /// The secret as it is sealed.
    fn trimmed(&self) -> Result<String, Error> {
        let secret = self.secret.reveal().trim().to_owned();
        if secret.is_empty() || secret.len() > SECRET_MAX {
            let message = format!("Invalid value for 'secret': expected 1 to {SECRET_MAX} bytes");
            return Err(Error::invalid("secret", message));
        }
        // Vertex's credentials are JSON of several lines; keys that go into a header are not.
        if !secret.starts_with('{') && secret.chars().any(|c| c.is_control() || !c.is_ascii()) {
            let message = "Invalid value for 'secret': it holds what no header can";
            return Err(Error::invalid("secret", message));
        }
        if let Some(provider) = PROVIDERS.iter().find(|provider| provider.slug == self.provider)
            && Credential::read(provider.auth, &secret).is_none()
        {
            let message =
                "Invalid value for 'secret': it is no key of this provider; where it is JSON it is not whole";
            return Err(Error::invalid("secret", message));
        }
        Ok(secret)
    }
}

impl KeptKey {
    /// What stands in its row, with a sealed secret.
    fn values(&self, sealed: String) -> Vec<Value> {
        vec![
            self.id.as_str().into(),
            self.account.as_str().into(),
            self.gateway.as_str().into(),
            self.provider.as_str().into(),
            self.alias.as_str().into(),
            i64::from(self.is_default).into(),
            i64::from(self.weight).into(),
            sealed.into(),
            self.preview.as_str().into(),
            number(self.created).into(),
            number(self.modified).into(),
            self.limit.map(|limit| number(limit.requests)).into(),
            self.limit.map(|limit| number(limit.period)).into(),
        ]
    }

    fn quota(&self) -> Option<Quota> {
        let KeyLimit { requests, period } = self.limit?;
        let rule = Rule { limit: requests, window: period, technique: Technique::Fixed };
        Some(Quota { name: format!("provider-key:{}", self.id), rule })
    }
}

impl Kept {
    /// The keys that a request uses.
    fn used(&self, account: &str, gateway: &str, provider: &str, alias: Option<&str>) -> Vec<&Sealed> {
        let here = |sealed: &&Sealed| {
            let key = &sealed.key;
            key.account == account && key.gateway == gateway && key.provider == provider
        };
        let of = |alias: &str| self.keys.iter().filter(here).filter(|s| s.key.alias == alias).collect();
        if let Some(alias) = alias {
            return of(alias);
        }
        let marked: Vec<&Sealed> = self.keys.iter().filter(here).filter(|s| s.key.is_default).collect();
        if marked.is_empty() { of(DEFAULT) } else { marked }
    }
}

fn no_kept_key(id: &str) -> Error {
    let shown: String = id.chars().take(64).collect();
    Error::new(ErrorKind::NotFound, format!("There is no key of a provider '{shown}'"))
}

fn broken(error: &SecretError) -> Error {
    tracing::error!(%error, "a provider's key cannot be used");
    Error::new(ErrorKind::Unavailable, format!("A provider's key cannot be used: {error}"))
}

impl Gateway {
    /// Says where the keys lie with which secrets are sealed. Called once; without it no key can be kept.
    pub fn seal_with(&self, place: SecretPlace) {
        // A second place would not open what the first sealed.
        let _ = self.0.secrets.set(place);
    }

    fn keyring(&self, make: bool) -> Result<Keyring, Error> {
        let place = self.0.secrets.get().ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "This server has no place for the key that secrets are sealed with",
            )
        })?;
        let (folder, environment) = (place.folder.as_path(), place.environment.as_deref());
        let keyring =
            if make { Keyring::load(folder, environment) } else { Keyring::find(folder, environment) };
        keyring.map_err(|error| broken(&error))
    }

    /// The keys that are kept for a gateway, the oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn kept_keys(&self, account: &str, gateway: &str) -> Result<Vec<KeptKey>, Error> {
        let directory = self.directory().await?;
        let found = directory.kept.keys.iter().map(|sealed| &sealed.key);
        Ok(found.filter(|key| key.account == account && key.gateway == gateway).cloned().collect())
    }

    /// Keeps a key.
    ///
    /// # Errors
    /// Names the field that is wrong; else when the gateway is not there, or the store or the key file fails.
    pub async fn keep_key(&self, new: NewKept) -> Result<KeptKey, Error> {
        self.gateway(&new.account, &new.gateway).await?;
        new.check()?;
        let secret = new.trimmed()?;
        self.check_keyring().await?;
        let (id, now) = (uuid::Uuid::now_v7().to_string(), self.now());
        let key = KeptKey {
            preview: preview(&secret),
            account: new.account,
            gateway: new.gateway,
            provider: new.provider,
            alias: new.alias,
            is_default: new.is_default,
            weight: new.weight,
            limit: new.limit,
            created: now,
            modified: now,
            id,
        };
        let values = key.values(self.seal_secret(secret, &bound_to(&key.id))?);
        let inserted = self.write("The provider's key could not be kept", move |work| {
            let sql = format!(
                "INSERT INTO gateway_provider_keys ({COLUMNS})
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
            );
            work.execute(&sql, &values)?;
            changed(work)
        });
        inserted.await?;
        Ok(key)
    }

    /// Makes a key that is kept as it is wished, under the same id. The wish is told what is there when it is changed; an
    /// empty secret leaves the one that is there.
    ///
    /// # Errors
    /// As [`Gateway::keep_key`], and when it is not there.
    pub async fn change_key(
        &self,
        account: &str,
        gateway: &str,
        id: &str,
        wish: impl Fn(&KeptKey) -> Result<NewKept, Error> + Send + 'static,
    ) -> Result<KeptKey, Error> {
        let (this, account, gateway, id) =
            (self.clone(), account.to_owned(), gateway.to_owned(), id.to_owned());
        let updated = self.change("The provider's key could not be changed", move |work| {
            let sql = format!(
                "SELECT {COLUMNS} FROM gateway_provider_keys WHERE account = ?1 AND gateway = ?2 AND id = ?3"
            );
            let place = [&account, &gateway, &id].map(|part| Value::from(part.as_str()));
            let Some(old) = work.query(&sql, &place)?.first().map(row).transpose()? else {
                return Ok(Err(no_kept_key(&id)));
            };
            let wished = wish(&old.key).and_then(|wish| this.wished(old, wish));
            let (key, sealed) = match wished {
                Ok(wished) => wished,
                Err(refused) => return Ok(Err(refused)),
            };
            let sql =
                "UPDATE gateway_provider_keys SET alias = ?5, is_default = ?6, weight = ?7, secret = ?8,
                preview = ?9, modified = ?11, rate_limit = ?12, rate_limit_period = ?13
                WHERE id = ?1 AND account = ?2 AND gateway = ?3 AND provider = ?4 AND created = ?10";
            work.execute(sql, &key.values(sealed))?;
            changed(work)?;
            Ok(Ok(key))
        });
        updated.await
    }

    /// A key as it is wished in the place of an old one, and its sealed secret.
    fn wished(&self, old: Sealed, new: NewKept) -> Result<(KeptKey, String), Error> {
        let Sealed { key: old, secret: sealed } = old;
        new.check()?;
        if new.provider != old.provider {
            return Err(Error::invalid("provider_slug", "The provider of a key stays as it is"));
        }
        let (sealed, preview) = if new.secret.reveal().is_empty() {
            (sealed, old.preview)
        } else {
            let secret = new.trimmed()?;
            let preview = preview(&secret);
            (self.seal_secret(secret, &bound_to(&old.id))?, preview)
        };
        let NewKept { alias, is_default, weight, limit, .. } = new;
        let modified = self.now();
        Ok((KeptKey { alias, is_default, weight, limit, preview, modified, ..old }, sealed))
    }

    /// A key that is kept.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn kept_key(&self, account: &str, gateway: &str, id: &str) -> Result<KeptKey, Error> {
        let kept = self.kept_keys(account, gateway).await?;
        kept.into_iter().find(|key| key.id == id).ok_or_else(|| no_kept_key(id))
    }

    /// Makes sure that what is kept already opens here: else this process seals with another key than the servers, which
    /// could not use what it keeps.
    async fn check_keyring(&self) -> Result<(), Error> {
        let directory = self.directory().await?;
        let Some(sealed) = directory.kept.keys.last() else { return Ok(()) };
        self.open_secret(&sealed.secret, &bound_to(&sealed.key.id)).map(drop).map_err(|error| Error {
            message: format!(
                "What is kept already was sealed with another key than the one here (HEARTH_SECRET_KEY, or the key file \
                 in the data folder): {}",
                error.message
            ),
            ..error
        })
    }

    /// Seals a secret for a row.
    pub(crate) fn seal_secret(&self, secret: String, row: &str) -> Result<String, Error> {
        self.keyring(true)?.seal(&secret.into(), row).map_err(|error| broken(&error))
    }

    /// Opens what was sealed for a row.
    pub(crate) fn open_secret(&self, sealed: &str, row: &str) -> Result<ProviderSecret, Error> {
        self.keyring(false)?.open(sealed, row).map_err(|error| broken(&error))
    }

    /// Forgets a key that is kept.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn forget_key(&self, account: &str, gateway: &str, id: &str) -> Result<KeptKey, Error> {
        let key = self.kept_key(account, gateway, id).await?;
        let values = [key.id.as_str().into()];
        let deleted = self.write("The provider's key could not be removed", move |work| {
            work.execute("DELETE FROM gateway_provider_keys WHERE id = ?1", &values)?;
            changed(work)
        });
        deleted.await?;
        Ok(key)
    }

    /// Seals every secret with a new key and forgets the old one; with the first key of the environment where that holds
    /// the keys. Gives how many were sealed. Other servers on this machine go on without a pause.
    ///
    /// # Errors
    /// When a secret cannot be opened, or the store or the key file fails. What was sealed before stays readable.
    pub async fn reseal(&self) -> Result<usize, Error> {
        let place = self.0.secrets.get().cloned();
        let in_file = place.filter(|place| place.environment.is_none()).map(|place| place.folder);
        let keyring = match &in_file {
            Some(folder) => Keyring::add_key(folder).map_err(|error| broken(&error))?,
            None => self.keyring(false)?,
        };
        let resealed = self.write("Secrets could not be sealed anew", move |work| {
            let failed = |error: SecretError| store::Error::Undone(error.to_string());
            let mut count = 0;
            for (table, column, bound) in [
                ("gateway_provider_keys", "secret", bound_to as fn(&str) -> String),
                ("gateway_custom_providers", "headers", custom::bound_to),
            ] {
                let sql = format!("SELECT id, {column} FROM {table} WHERE {column} IS NOT NULL");
                for row in &work.query(&sql, &[])? {
                    let id = row.text(0)?;
                    let secret = keyring.open(row.text(1)?, &bound(id)).map_err(failed)?;
                    let sealed = keyring.seal(&secret, &bound(id)).map_err(failed)?;
                    let values = [id.into(), sealed.into()];
                    work.execute(&format!("UPDATE {table} SET {column} = ?2 WHERE id = ?1"), &values)?;
                    count += 1;
                }
            }
            changed(work)?;
            Ok(count)
        });
        let resealed = resealed.await?;
        if let Some(folder) = &in_file {
            Keyring::retire_keys(folder).map_err(|error| broken(&error))?;
        }
        Ok(resealed)
    }

    /// The provider with the keys that are kept for a request; nothing where none are.
    ///
    /// # Errors
    /// When the alias is not there, or a secret cannot be opened.
    pub(crate) async fn with_kept_keys(
        &self,
        account: &str,
        gateway: &str,
        provider: &Arc<Configured>,
        alias: Option<&str>,
    ) -> Result<Option<Arc<Configured>>, Error> {
        let directory = self.directory().await?;
        let kept = &directory.kept;
        if kept.keys.is_empty() && alias.is_none() {
            return Ok(None);
        }
        let place: Place =
            (account.into(), gateway.into(), provider.slug.to_string(), alias.map(str::to_owned));
        if let Some((of, made)) = kept.made.lock().unwrap_or_else(PoisonError::into_inner).get(&place)
            && Arc::ptr_eq(of, provider)
        {
            return Ok(Some(Arc::clone(made)));
        }
        let used = kept.used(account, gateway, &provider.slug, alias);
        if used.is_empty() {
            return match alias {
                None => Ok(None),
                Some(alias) => {
                    let shown: String = alias.chars().take(64).collect();
                    let message =
                        format!("No key of {} is kept here under the alias '{shown}'", provider.slug);
                    Err(Error::invalid(ALIAS, message))
                }
            };
        }
        let keys = self.open_secrets(&used)?;
        let owner = format!("{account}/{gateway}");
        let made = provider.with_keys(keys, &owner).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("A provider's key cannot be used: {error}"))
        })?;
        let made = Arc::new(made);
        let mut all = kept.made.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MADE_MAX {
            all.clear();
        }
        all.insert(place, (Arc::clone(provider), Arc::clone(&made)));
        Ok(Some(made))
    }

    fn open_secrets(&self, sealed: &[&Sealed]) -> Result<Vec<(ProviderKey, Option<Quota>)>, Error> {
        // Read anew each time, which is after a change only: another process may have given it another key.
        let keyring = self.keyring(false)?;
        let open = |sealed: &&Sealed| {
            let secret = keyring.open(&sealed.secret, &bound_to(&sealed.key.id))?;
            let key = ProviderKey { secret: secret.reveal().to_owned(), weight: sealed.key.weight };
            Ok((key, sealed.key.quota()))
        };
        sealed.iter().map(open).collect::<Result<_, SecretError>>().map_err(|error| broken(&error))
    }
}

/// Takes the keys of a gateway that is removed away with it.
pub(crate) fn remove_of_gateway(work: &store::Work<'_>, place: &[Value; 2]) -> Result<(), store::Error> {
    let sql = "DELETE FROM gateway_provider_keys WHERE account = ?1 AND gateway = ?2";
    work.execute(sql, place).map(|_| ())
}
