//! Providers of an account's own: an address that is called `custom-{slug}`, kept in the store.
//!
//! Whoever manages an account is not whoever runs the server, so such an address must be `https` and public: its name is
//! looked at here, and what it resolves to when it is connected to (`upstream`). Where the operator allows it, plain
//! `http` and private networks pass; that is kept with the provider. Headers that are sent to it lie sealed as keys do
//! (`secret`), since their values may be secrets, and are shown by their last characters. Not here: providers of `hearth.toml`, which the
//! operator wrote.

pub(crate) mod address;
mod headers;
#[cfg(test)]
mod tests;

pub(crate) use address::is_public;

use crate::Gateway;
use crate::account::number;
use crate::dialect::Dialect;
use crate::directory::changed;
use crate::provider::{Configured, Providers, Wishes};
use headers::Headers;
use hyper::http::HeaderMap;
use protocol::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use store::{Part, Row, Work};

/// The tables.
pub const TABLES: Part =
    Part { name: "custom providers", steps: &[include_str!("tables_1.sql"), include_str!("tables_2.sql")] };

/// Longest slug, and longest text of the others.
const LENGTHS: (usize, usize) = (32, 4096);

/// What is only shown, and the dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// For people.
    pub name: String,
    /// For people.
    pub description: Option<String>,
    /// Where to read more.
    pub link: Option<String>,
    /// How it is called with curl.
    pub curl_example: Option<String>,
    /// How it is called from JavaScript.
    pub js_example: Option<String>,
    /// Whether people are told that it is new.
    pub beta: bool,
    /// Its place in lists.
    pub position: Option<i64>,
    /// `openai` or `anthropic`.
    pub dialect: Option<String>,
    /// The headers that it is sent, with the last characters of their values.
    pub headers: BTreeMap<String, String>,
}

/// A provider of an account's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Custom {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub account: String,
    /// What stands after `custom-`.
    pub slug: String,
    /// Where its API begins.
    pub base_url: String,
    /// Whether it may be asked.
    pub enabled: bool,
    /// Whether plain HTTP and private networks are allowed.
    pub private: bool,
    /// What is shown.
    pub about: About,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub modified: u64,
    /// The headers that it is sent, sealed; none where there are none.
    sealed: Option<String>,
}

/// Whether plain HTTP and private networks are allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// They are not.
    #[default]
    Public,
    /// They are.
    Private,
}

/// Providers of the settings, and those with an account's over them.
type Merged = (Arc<Providers>, Arc<Providers>);

/// Providers of all accounts, and what they make together with those of the settings.
#[derive(Debug, Default)]
pub(crate) struct Customs {
    all: Vec<Arc<Custom>>,
    /// Those that may be asked, by account.
    ready: HashMap<String, Vec<Arc<Custom>>>,
    /// By account, with those of the settings that it was made of.
    merged: Mutex<HashMap<String, Merged>>,
}

const COLUMNS: &str = "id, account, slug, base_url, enabled, private, about, created, modified, headers";

/// What sealed headers are bound to.
pub(crate) fn bound_to(id: &str) -> String {
    format!("custom_providers/{id}")
}

/// All of them.
pub(crate) fn read(work: &Work<'_>) -> Result<Customs, store::Error> {
    let mut customs = Customs::default();
    let sql = format!("SELECT {COLUMNS} FROM gateway_custom_providers ORDER BY created, id");
    for found in work.query(&sql, &[])? {
        let custom = Arc::new(row(&found)?);
        match custom.configured(HeaderMap::new()) {
            _ if !custom.enabled => {}
            Ok(_) => customs.ready.entry(custom.account.clone()).or_default().push(Arc::clone(&custom)),
            Err(error) => {
                tracing::warn!(%error, "a provider of the account {} cannot be asked", custom.account)
            }
        }
        customs.all.push(custom);
    }
    Ok(customs)
}

fn row(row: &Row) -> Result<Custom, store::Error> {
    let about = serde_json::from_str(row.text(6)?)
        .map_err(|error| store::Error::Failed(format!("a kept provider cannot be read: {error}")))?;
    Ok(Custom {
        id: row.text(0)?.to_owned(),
        account: row.text(1)?.to_owned(),
        slug: row.text(2)?.to_owned(),
        base_url: row.text(3)?.to_owned(),
        enabled: row.integer(4)? != 0,
        private: row.integer(5)? != 0,
        about,
        created: row.integer(7)?.unsigned_abs(),
        modified: row.integer(8)?.unsigned_abs(),
        sealed: row.optional_text(9)?.map(str::to_owned),
    })
}

impl Custom {
    /// A new one of this account, which has no name yet.
    fn new(account: &str, now: u64) -> Self {
        Self {
            id: uuid::Uuid::now_v7().to_string(),
            account: account.to_owned(),
            slug: String::new(),
            base_url: String::new(),
            enabled: true,
            private: false,
            about: About::default(),
            created: now,
            modified: now,
            sealed: None,
        }
    }

    /// Reads the fields of a request over what is there. Gives the headers where they are named, which are yet to be
    /// sealed.
    fn set(&mut self, fields: &Map<String, Value>, reach: Reach) -> Result<Option<Headers>, Error> {
        let mut headers = None;
        for (name, value) in fields {
            let about = &mut self.about;
            match name.as_str() {
                "name" => about.name = text(name, value)?.ok_or_else(|| missing(name))?,
                "slug" => {
                    let slug = text(name, value)?.ok_or_else(|| missing(name))?;
                    check_slug(&slug)?;
                    if !self.slug.is_empty() && self.slug != slug {
                        return Err(Error::invalid(name, "The slug of a provider stays as it is"));
                    }
                    self.slug = slug;
                }
                "base_url" => self.base_url = text(name, value)?.ok_or_else(|| missing(name))?,
                "description" => about.description = text(name, value)?,
                "link" => about.link = text(name, value)?,
                "curl_example" => about.curl_example = text(name, value)?,
                "js_example" => about.js_example = text(name, value)?,
                "beta" => about.beta = flag(name, value)?,
                "enable" => self.enabled = flag(name, value)?,
                "position" if value.is_null() || value.is_i64() => about.position = value.as_i64(),
                "dialect" => about.dialect = dialect(value)?,
                "headers" => headers = Some(Headers::parse(value)?),
                // A client may send back what it was given.
                "id" | "account_id" | "account_tag" | "created_at" | "modified_at" | "logo" => {}
                _ => {
                    let shown: String = name.chars().take(64).collect();
                    return Err(Error::invalid(&shown, format!("Invalid value for '{shown}'")));
                }
            }
        }
        self.private = reach == Reach::Private && address::check(&self.base_url, Reach::Public).is_err();
        address::check(&self.base_url, reach)?;
        Ok(headers)
    }

    fn configured(&self, headers: HeaderMap) -> Result<Configured, crate::provider::ProviderError> {
        let dialect = match self.about.dialect.as_deref() {
            Some("anthropic") => Some(Dialect::Anthropic),
            _ => None,
        };
        let wishes = Wishes {
            base_url: Some(self.base_url.clone()),
            dialect,
            public_only: !self.private,
            owner: Some(self.account.as_str().into()),
            headers,
            ..Wishes::default()
        };
        Configured::new(&format!("custom-{}", self.slug), wishes)
    }

    /// As AI Gateway's clients read it; times are texts.
    #[must_use]
    pub fn object(&self, time: impl Fn(u64) -> String) -> Value {
        let About { name, description, link, curl_example, js_example, beta, position, dialect, headers } =
            &self.about;
        let headers = (!headers.is_empty()).then(|| serde_json::json!(headers).to_string());
        serde_json::json!({
            "id": self.id, "name": name, "slug": self.slug, "base_url": self.base_url, "enable": self.enabled,
            "beta": beta, "description": description, "link": link, "curl_example": curl_example,
            "js_example": js_example, "position": position, "logo": null, "headers": headers,
            "dialect": dialect.as_deref().unwrap_or("openai"),
            "created_at": time(self.created), "modified_at": time(self.modified),
        })
    }

    fn values(&self) -> Vec<store::Value> {
        vec![
            self.id.as_str().into(),
            self.account.as_str().into(),
            self.slug.as_str().into(),
            self.base_url.as_str().into(),
            i64::from(self.enabled).into(),
            i64::from(self.private).into(),
            serde_json::to_string(&self.about).expect("texts and numbers have no failing fields").into(),
            number(self.created).into(),
            number(self.modified).into(),
            self.sealed.as_deref().into(),
        ]
    }
}

/// One of an account as it is at this moment, which a change of it goes by; see [`Gateway::custom`].
fn find(work: &Work<'_>, account: &str, id: &str) -> Result<Option<Custom>, store::Error> {
    let slug = id.strip_prefix("custom-").unwrap_or(id);
    let sql = format!(
        "SELECT {COLUMNS} FROM gateway_custom_providers WHERE account = ?1 AND (id = ?2 OR slug = ?3)
         ORDER BY created, id"
    );
    work.query(&sql, &[account.into(), id.into(), slug.into()])?.first().map(row).transpose()
}

fn not_there(id: &str) -> Error {
    let shown: String = id.chars().take(64).collect();
    Error::new(ErrorKind::NotFound, format!("There is no provider '{shown}' of the account's own"))
}

fn missing(name: &str) -> Error {
    Error::invalid(name, format!("'{name}' is missing"))
}

fn text(name: &str, value: &Value) -> Result<Option<String>, Error> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.len() <= LENGTHS.1 && !text.contains('\0') => Ok(Some(text.clone())),
        _ => Err(Error::invalid(
            name,
            format!("Invalid value for '{name}': expected a text of at most {} bytes", LENGTHS.1),
        )),
    }
}

fn flag(name: &str, value: &Value) -> Result<bool, Error> {
    let wrong = || Error::invalid(name, format!("Invalid value for '{name}': expected true or false"));
    value.as_bool().ok_or_else(wrong)
}

fn dialect(value: &Value) -> Result<Option<String>, Error> {
    match value.as_str() {
        Some(known @ ("openai" | "anthropic")) => Ok(Some(known.to_owned())),
        None if value.is_null() => Ok(None),
        _ => Err(Error::invalid("dialect", "Invalid value for 'dialect': expected openai or anthropic")),
    }
}

fn check_slug(slug: &str) -> Result<(), Error> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if slug.is_empty() || slug.len() > LENGTHS.0 || !slug.chars().all(fine) || slug.starts_with('-') {
        let message = format!(
            "Invalid value for 'slug': expected 1 to {} small letters, digits or '-', not a '-' first",
            LENGTHS.0
        );
        return Err(Error::invalid("slug", message));
    }
    Ok(())
}

impl Customs {
    /// Whether a provider is an account's own.
    pub(crate) fn is_own(&self, account: &str, slug: &str) -> bool {
        let slug = slug.strip_prefix("custom-");
        self.ready.get(account).is_some_and(|own| own.iter().any(|custom| Some(&*custom.slug) == slug))
    }
}

impl Gateway {
    /// Who can be asked in an account: those of the settings, and over them the account's own.
    ///
    /// # Errors
    /// When the store was never read and cannot be.
    pub async fn providers(
        &self,
        account: &str,
        of_settings: &Arc<Providers>,
    ) -> Result<Arc<Providers>, Error> {
        let directory = self.directory().await?;
        let customs = &directory.customs;
        let Some(own) = customs.ready.get(account) else { return Ok(Arc::clone(of_settings)) };
        let mut merged = customs.merged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, made)) = merged.get(account)
            && Arc::ptr_eq(of, of_settings)
        {
            return Ok(Arc::clone(made));
        }
        let own: Vec<_> = own.iter().filter_map(|custom| self.with_headers(custom)).collect();
        let made = Arc::new(of_settings.with(&own));
        merged.insert(account.to_owned(), (Arc::clone(of_settings), Arc::clone(&made)));
        Ok(made)
    }

    /// A provider that is ready to be asked; none where its headers cannot be opened, without which it is not asked.
    fn with_headers(&self, custom: &Custom) -> Option<Arc<Configured>> {
        let headers = match &custom.sealed {
            None => HeaderMap::new(),
            Some(sealed) => self.open_headers(custom, sealed).ok()?.map(),
        };
        custom.configured(headers).ok().map(Arc::new)
    }

    fn open_headers(&self, custom: &Custom, sealed: &str) -> Result<Headers, Error> {
        Headers::parse(&self.open_secret(sealed, &bound_to(&custom.id))?.reveal().into())
    }

    /// Seals the headers that a request named. A value that is shown for one that is there means that one.
    fn seal_headers(&self, custom: &mut Custom, mut headers: Headers) -> Result<(), Error> {
        if headers.has_previews() {
            let old = custom.sealed.as_ref().map(|sealed| self.open_headers(custom, sealed)).transpose()?;
            headers.complete(&old.unwrap_or_default())?;
        }
        custom.about.headers = headers.previews();
        custom.sealed = match headers.is_empty() {
            true => None,
            false => Some(self.seal_secret(headers.text(), &bound_to(&custom.id))?),
        };
        Ok(())
    }

    /// The providers that an account made, the oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn customs(&self, account: &str) -> Result<Vec<Arc<Custom>>, Error> {
        let directory = self.directory().await?;
        Ok(directory.customs.all.iter().filter(|custom| custom.account == account).cloned().collect())
    }

    /// A text that changes with each change of an account's own providers that changes what they answer.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn customs_stamp(&self, account: &str) -> Result<String, Error> {
        let directory = self.directory().await?;
        let own = directory.customs.all.iter().filter(|custom| custom.account == account);
        let parts = own.map(|custom| {
            let Custom { id, base_url, enabled, private, sealed, about, .. } = &**custom;
            serde_json::json!([id, base_url, enabled, private, sealed, about.dialect])
        });
        Ok(Value::from_iter(parts).to_string())
    }

    /// One of them, by its id or its slug (with or without `custom-`).
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn custom(&self, account: &str, id: &str) -> Result<Arc<Custom>, Error> {
        let slug = id.strip_prefix("custom-").unwrap_or(id);
        let found = self.customs(account).await?.into_iter();
        let mut found = found.filter(|custom| custom.id == id || custom.slug == slug);
        found.next().ok_or_else(|| not_there(id))
    }

    /// Makes a provider.
    ///
    /// # Errors
    /// Names the field that is wrong, also where the slug is taken; else when the account is not there or the store
    /// fails.
    pub async fn create_custom(
        &self,
        account: &str,
        fields: &Map<String, Value>,
        reach: Reach,
    ) -> Result<Arc<Custom>, Error> {
        self.check_account(account).await?;
        if let Some(name) = ["name", "slug", "base_url"].into_iter().find(|name| !fields.contains_key(*name))
        {
            return Err(missing(name));
        }
        let mut custom = Custom::new(account, self.now());
        if let Some(headers) = custom.set(fields, reach)? {
            self.seal_headers(&mut custom, headers)?;
        }
        let values = custom.values();
        let inserted = self.write("The provider could not be made", move |work| {
            let sql = format!(
                "INSERT INTO gateway_custom_providers ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
                 ON CONFLICT (account, slug) DO NOTHING"
            );
            let new = work.execute(&sql, &values)? > 0;
            changed(work)?;
            Ok(new)
        });
        if !inserted.await? {
            let message = format!("There is a provider '{}' of this account already", custom.slug);
            return Err(Error::invalid("slug", message));
        }
        Ok(Arc::new(custom))
    }

    /// Changes what is named of a provider; requests within a second go by it.
    ///
    /// # Errors
    /// As [`Gateway::create_custom`], and when it is not there.
    pub async fn update_custom(
        &self,
        account: &str,
        id: &str,
        fields: &Map<String, Value>,
        reach: Reach,
    ) -> Result<Arc<Custom>, Error> {
        let (gateway, account, id) = (self.clone(), account.to_owned(), id.to_owned());
        let fields = fields.clone();
        let updated = self.change("The provider could not be changed", move |work| {
            let Some(mut custom) = find(work, &account, &id)? else { return Ok(Err(not_there(&id))) };
            // What was allowed stays so while the address stays.
            let same = fields.get("base_url").is_none_or(|url| *url == custom.base_url.as_str());
            let reach = if same && custom.private { Reach::Private } else { reach };
            let set = custom.set(&fields, reach).and_then(|headers| match headers {
                Some(headers) => gateway.seal_headers(&mut custom, headers),
                None => Ok(()),
            });
            if let Err(refused) = set {
                return Ok(Err(refused));
            }
            custom.modified = gateway.now();
            let sql =
                "UPDATE gateway_custom_providers SET base_url = ?4, enabled = ?5, private = ?6, about = ?7,
                 modified = ?9, headers = ?10 WHERE id = ?1 AND account = ?2 AND slug = ?3 AND created = ?8";
            work.execute(sql, &custom.values())?;
            changed(work)?;
            Ok(Ok(Arc::new(custom)))
        });
        updated.await
    }

    /// Removes a provider and the keys that are kept for it; what the ledger says of it stays.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn delete_custom(&self, account: &str, id: &str) -> Result<Arc<Custom>, Error> {
        let (account, id) = (account.to_owned(), id.to_owned());
        let deleted = self.change("The provider could not be removed", move |work| {
            let Some(custom) = find(work, &account, &id)? else { return Ok(Err(not_there(&id))) };
            work.execute("DELETE FROM gateway_custom_providers WHERE id = ?1", &[custom.id.as_str().into()])?;
            let sql = "DELETE FROM gateway_provider_keys WHERE provider = ?1 AND account = ?2";
            let slug = format!("custom-{}", custom.slug);
            work.execute(sql, &[slug.into(), account.as_str().into()])?;
            changed(work)?;
            Ok(Ok(Arc::new(custom)))
        });
        deleted.await
    }
}
