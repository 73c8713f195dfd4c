//! The types of single settings: how each is written, on the command line and in the file alike.

use base::{Bytes, NanoUsd, Price};
use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port when none is named.
pub const DEFAULT_PORT: u16 = 8790;

/// An address to listen on: `127.0.0.1:8790`, `0.0.0.0` (the default port), `8790` or `:8790` (loopback).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen(pub SocketAddr);

impl Default for Listen {
    fn default() -> Self {
        Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let named = text.strip_prefix("localhost").map(|rest| format!("127.0.0.1{rest}"));
        let text = named.as_deref().unwrap_or(text);
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(address));
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Self(SocketAddr::new(ip, DEFAULT_PORT)));
        }
        if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
            return Ok(Self(SocketAddr::new(loopback, port)));
        }
        Err(format!("{text:?} is not an address; write for example 127.0.0.1:8790 or 0.0.0.0:8790"))
    }
}

impl TryFrom<String> for Listen {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A size such as `4GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub Bytes);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes: Bytes = text.parse().map_err(|error: base::ParseBytesError| error.to_string())?;
        if bytes.0 == 0 { Err("must be more than nothing".into()) } else { Ok(Self(bytes)) }
    }
}

impl TryFrom<String> for Size {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A secret; never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ApiKey(String);

impl ApiKey {
    /// The secret itself.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl FromStr for ApiKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the key is empty".into());
        }
        // It travels in a header, where nothing else is allowed.
        if !text.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
            return Err("the key may hold only visible ASCII characters".into());
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ApiKey {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// What float weights become while loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Quantize {
    /// 8 bits a weight.
    Int8,
    /// 4 bits a weight.
    Int4,
}

/// One model to serve.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawModelArg")]
pub struct ModelArg {
    /// The id callers use, where it was set.
    pub name: Option<String>,
    /// Other ids for it.
    pub aliases: Vec<String>,
    /// Where it is.
    pub target: Target,
    /// Quantisation of its float weights.
    pub quantize: Option<Quantize>,
    /// What it costs.
    pub price: Option<Price>,
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// In the catalog, by id.
    Id(String),
    /// At a source that no catalog names, such as `hf:owner/repo/file.gguf`.
    Source(String),
    /// On this machine.
    Path(PathBuf),
}

impl ModelArg {
    /// The names that are known before anything is read.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.name.clone().or_else(|| self.target.default_name()).into_iter().chain(self.aliases.clone())
    }
}

impl Target {
    /// The id callers use when none was set; `None` where only the source's entry can tell.
    #[must_use]
    pub fn default_name(&self) -> Option<String> {
        match self {
            Self::Id(id) => Some(id.clone()),
            Self::Source(_) => None,
            Self::Path(path) => {
                let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
                let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
                Some(name?.to_string_lossy().to_lowercase())
            }
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("no model is named".into());
        }
        if text.starts_with("hf:") || text.starts_with("pypi:") {
            return Ok(Self::Source(text.to_owned()));
        }
        let path = Path::new(text);
        // An id never holds a slash and never ends so; a file or folder of that bare name is meant with ./NAME.
        let looks_like_a_path = text.contains('/') || text == "." || text == ".." || text.ends_with(".gguf");
        Ok(if looks_like_a_path { Self::Path(path.to_owned()) } else { Self::Id(text.to_owned()) })
    }
}

impl FromStr for ModelArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A path may hold '=' too: what stands before it is a name only if it could be one.
        let (name, target) = match text.split_once('=') {
            Some((name, target)) if !name.contains(['/', ':']) && !target.starts_with('=') => {
                (Some(name), target)
            }
            _ => (None, text),
        };
        Ok(Self {
            name: name.map(check_name).transpose()?,
            aliases: Vec::new(),
            target: target.parse()?,
            quantize: None,
            price: None,
        })
    }
}

fn check_name(name: &str) -> Result<String, String> {
    let good = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_.:@/".contains(c));
    if good { Ok(name.to_owned()) } else { Err(format!("{name:?} is not a name for a model")) }
}

/// How a model is written in the file: `"ID_OR_PATH"`, or a table.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawModelArg {
    Short(String),
    Long(RawModelTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModelTable {
    model: String,
    name: Option<String>,
    #[serde(default)]
    aliases: Vec<String>,
    quantize: Option<Quantize>,
    price: Option<RawPrice>,
}

/// Dollars per million tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPrice {
    input: f64,
    cached_input: Option<f64>,
    output: f64,
}

impl RawPrice {
    /// Without a price of its own, cached input costs what input does.
    pub(crate) fn resolve(&self) -> Result<Price, String> {
        let money = |dollars: f64| {
            NanoUsd::from_dollars(dollars)
                .filter(|money| money.0 >= 0)
                .ok_or_else(|| format!("{dollars} is not a price in dollars per million tokens"))
        };
        Ok(Price {
            input: money(self.input)?,
            cached_input: money(self.cached_input.unwrap_or(self.input))?,
            output: money(self.output)?,
        })
    }
}

impl TryFrom<RawModelArg> for ModelArg {
    type Error = String;

    fn try_from(raw: RawModelArg) -> Result<Self, String> {
        match raw {
            RawModelArg::Short(text) => text.parse(),
            RawModelArg::Long(table) => Ok(Self {
                name: table.name.as_deref().map(check_name).transpose()?,
                aliases: table.aliases.iter().map(|alias| check_name(alias)).collect::<Result<_, _>>()?,
                target: table.model.parse()?,
                quantize: table.quantize,
                price: table.price.map(|price| price.resolve()).transpose()?,
            }),
        }
    }
}
