//! The types of single settings: how each is written, on the command line and in the file alike.

use base::{Bytes, NanoUsd, Price};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serving::StepTime;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

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

/// How long a step may take while answers are being written: `auto`, or a time such as `80ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct StepTimeArg(pub StepTime);

impl FromStr for StepTimeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self(StepTime::Auto));
        }
        let millis = text.strip_suffix("ms").and_then(|number| number.trim_end().parse::<u32>().ok());
        match millis.filter(|millis| (1..=60_000).contains(millis)) {
            Some(millis) => Ok(Self(StepTime::AtMost(Duration::from_millis(millis.into())))),
            None => Err(format!("{text:?} is neither `auto` nor a time from 1ms to 60000ms")),
        }
    }
}

impl TryFrom<String> for StepTimeArg {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A whole number from 1 to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<const MAX: u32 = { u32::MAX }>(u32);

/// As many threads as a big machine has; many more would exhaust what the system grants a process.
pub type Threads = Count<1024>;

impl<const MAX: u32> Count<MAX> {
    /// The number, where it is one of them.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        u32::try_from(number).ok().filter(|number| (1..=MAX).contains(number)).map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    fn range() -> String {
        if MAX == u32::MAX {
            "a whole number above 0".into()
        } else {
            format!("a whole number from 1 to {MAX}")
        }
    }
}

impl<const MAX: u32> FromStr for Count<MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().parse().ok().and_then(Self::new);
        number.ok_or_else(|| format!("must be {}", Self::range()))
    }
}

impl<'de, const MAX: u32> Deserialize<'de> for Count<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const MAX: u32>;
        impl<const MAX: u32> Visitor<'_> for Number<MAX> {
            type Value = Count<MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&Count::<MAX>::range())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                Count::new(number).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                let count = u64::try_from(number).ok().and_then(Count::new);
                count.ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(Number)
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
        // A file that was read into a variable leaves one at the end.
        let text = text.trim_end_matches(['\n', '\r']);
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

/// Reads a key of the command line or the environment; clap's own words for a wrong one would show it.
#[derive(Clone)]
pub struct ApiKeyParser;

impl clap::builder::ValueParserFactory for ApiKey {
    type Parser = ApiKeyParser;
    fn value_parser() -> ApiKeyParser {
        ApiKeyParser
    }
}

impl clap::builder::TypedValueParser for ApiKeyParser {
    type Value = ApiKey;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<ApiKey, clap::Error> {
        let key = value.to_str().unwrap_or("\u{fffd}").parse();
        key.map_err(|why: String| {
            let message = format!("--api-key (HEARTH_API_KEY): {why}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl TryFrom<String> for ApiKey {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The URL of a database, as it was written: it may hold a password, so it is never shown, and whether it can be used is
/// found out where no message shows what was given.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct DatabaseUrl(pub(super) String);

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(…)")
    }
}

impl From<String> for DatabaseUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl FromStr for DatabaseUrl {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// A setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It is done.
    On,
    /// It is not.
    Off,
}

/// What a commit in the data folder's file survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// The end of the process.
    Process,
    /// A power cut too.
    PowerLoss,
}

impl From<Durability> for store::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Process => Self::Process,
            Durability::PowerLoss => Self::PowerLoss,
        }
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

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 8 bits an element, and a scale for each token and head.
    Int8,
}

impl From<KvType> for serving::KvFormat {
    fn from(kind: KvType) -> Self {
        match kind {
            KvType::F16 => Self::F16,
            KvType::Bf16 => Self::Bf16,
            KvType::Int8 => Self::Int8,
        }
    }
}

/// One model to serve.
#[derive(Clone, Debug, PartialEq)]
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
    /// A script on this machine, which is replayed (`docs/scripts.md`).
    Script(PathBuf),
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
            Self::Path(path) | Self::Script(path) => {
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
        if let Some(file) = text.strip_prefix("script:") {
            let named = !file.is_empty();
            return if named { Ok(Self::Script(file.into())) } else { Err("script: names no file".into()) };
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

/// A model as a table of the file.
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

impl TryFrom<RawModelTable> for ModelArg {
    type Error = String;

    fn try_from(table: RawModelTable) -> Result<Self, String> {
        Ok(Self {
            name: table.name.as_deref().map(check_name).transpose()?,
            aliases: table.aliases.iter().map(|alias| check_name(alias)).collect::<Result<_, _>>()?,
            target: table.model.parse()?,
            quantize: table.quantize,
            price: table.price.map(|price| price.resolve()).transpose()?,
        })
    }
}

/// In the file a model is `"ID_OR_PATH"`, or a table. Told apart by hand: an untagged enum would lose what is wrong in
/// the table.
impl<'de> Deserialize<'de> for ModelArg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShortOrLong;
        impl<'de> Visitor<'de> for ShortOrLong {
            type Value = ModelArg;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a model's id or path, or a table such as { model = \"ID_OR_PATH\", name = \"…\" }",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ModelArg, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ModelArg, A::Error> {
                let table = RawModelTable::deserialize(MapAccessDeserializer::new(map))?;
                table.try_into().map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(ShortOrLong)
    }
}
