//! Where a provider answers: how its paths are made, what a path of its own asks for, and how a model is asked by name.
//!
//! Most providers have one base, and name the model in the body. Google's and Amazon's name it in the path, and Vertex AI,
//! Azure and Bedrock have an address for each region or resource, which AI Gateway's paths tell in their first segments:
//!
//! | provider | AI Gateway's path | address |
//! |---|---|---|
//! | `google-vertex-ai` | `v1/projects/P/locations/L/publishers/…` | `L-aiplatform.googleapis.com` |
//! | `azure-openai` | `RESOURCE/DEPLOYMENT/…` | `RESOURCE.openai.azure.com/openai/deployments/DEPLOYMENT/…` |
//! | `aws-bedrock` | `bedrock-runtime/REGION/model/…` | `bedrock-runtime.REGION.amazonaws.com/model/…` |
//!
//! With a base URL of one's own these lead there instead. Sources: `ai-gateway-provider` 4.0.1 (`providers.ts`) for AI
//! Gateway's paths, `google-genai` 3.6.1 (`_api_client.py`) for Vertex AI's addresses, and the providers' own references.

use super::Configured;
use crate::credential::aws::encoded;
use crate::dialect::Dialect;
use crate::scan::{Edits, Field, Pieces, scan};
use bytes::Bytes;
use hyper::http::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use protocol::Error;
use std::borrow::Cow;

/// How the addresses of a provider are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The path behind the base.
    Base,
    /// Google AI Studio: the model in the path.
    Gemini,
    /// Vertex AI: project, region, publisher and model in the path.
    Vertex,
    /// Azure: a resource's own address, a deployment in the path.
    Azure,
    /// Amazon Bedrock: a region's address, the model in the path.
    Bedrock,
}

/// What a path of a provider's own API asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What is spoken there; nothing where it is the provider's usual dialect.
    pub dialect: Option<Dialect>,
    /// The model that the path names.
    pub model: Option<String>,
    /// Whether it only counts tokens, which costs nothing.
    pub counts: bool,
}

/// How a model is asked by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The path for [`Configured::url`].
    pub path: String,
    /// What stands behind the path.
    pub query: Option<String>,
    /// The model's name there.
    pub model: String,
    /// What stands in the body where `model` stood, as name and JSON, because the path names the model.
    pub instead: Option<(&'static str, &'static str)>,
}

impl Way {
    /// A body in the dialect as this way wants it.
    ///
    /// # Errors
    /// When it is no JSON object.
    pub fn body(&self, body: Bytes) -> Result<Pieces, Error> {
        let Some((name, json)) = self.instead else { return Ok(body.into()) };
        let mut edits = Edits::none();
        edits.replace(&scan(&body)?, Field::Model, name, json);
        Ok(edits.apply(&body))
    }
}

/// The version that Vertex AI wants in the body of Anthropic's Messages.
const VERTEX_ANTHROPIC: (&str, &str) = ("anthropic_version", "\"vertex-2023-10-16\"");

/// What stands for Vertex AI's version where a path begins with a publisher.
const VERTEX_VERSION: &str = "v1";

/// Paths that count tokens, of Anthropic's API and of OpenAI's.
const COUNTING: [&str; 2] = ["messages/count_tokens", "responses/input_tokens"];

/// Bedrock's services that AI Gateway's paths name.
const BEDROCK: &[&str] = &["bedrock-runtime", "bedrock-agent-runtime", "bedrock"];

/// Where Amazon's services are asked when nobody says.
const REGION: &str = "us-east-1";

/// A name that may be part of a host.
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty()
        && text.len() < 64
        && text.bytes().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The text that a segment of a path stands for; itself where it stands for none.
fn decoded(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return segment.into();
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_or(segment.into(), Cow::Owned)
}

/// The verb behind a model: `models/MODEL:VERB`.
fn model_and_verb(path: &str) -> Option<(&str, &str)> {
    let at = path.rfind("models/").filter(|at| *at == 0 || path.as_bytes()[at - 1] == b'/')?;
    let (model, verb) = path[at + 7..].split_once(':')?;
    (!model.is_empty() && !model.contains('/')).then_some((model, verb))
}

impl Configured {
    /// The address of a path of the provider's API, as a client of AI Gateway writes it: it may begin with the version that
    /// the base ends with. Nothing where the path is none, or would leave the base.
    #[must_use]
    pub fn url(&self, path: &str, query: Option<&str>) -> Option<Uri> {
        let path = path.trim_start_matches('/');
        let leaves = |segment: &str| matches!(&*decoded(segment), "." | "..");
        if path.split('/').any(leaves) {
            return None;
        }
        let (host, path) = match self.place {
            Place::Base | Place::Gemini => (None, Cow::Borrowed(path)),
            Place::Vertex => self.vertex(path)?,
            Place::Azure => self.azure(path)?,
            Place::Bedrock => self.bedrock(path)?,
        };
        let base = self.base.path().trim_end_matches('/');
        let version = base.rsplit('/').next().filter(|last| !last.is_empty());
        let path = match version.and_then(|version| path.strip_prefix(version)) {
            Some(rest) if rest.starts_with('/') => &rest[1..],
            _ => &path,
        };
        let mut whole = format!("{base}/{path}");
        if let Some(query) = query {
            whole.push('?');
            whole.push_str(query);
        }
        let mut parts = self.base.clone().into_parts();
        if let Some(host) = host.filter(|_| !self.own_base) {
            parts.scheme = Some(Scheme::HTTPS);
            parts.authority = Some(Authority::try_from(host).ok()?);
        }
        parts.path_and_query = Some(PathAndQuery::try_from(whole).ok()?);
        Uri::from_parts(parts).ok()
    }

    /// `projects/P/locations/L/…` with or without a version before, or `publishers/…` and `endpoints/…`, which are put
    /// behind the project and region that are set.
    fn vertex<'a>(&self, path: &'a str) -> Option<(Option<String>, Cow<'a, str>)> {
        let whole = if path.starts_with("publishers/") || path.starts_with("endpoints/") {
            let (project, region) = (self.project.as_deref()?, self.region.as_deref()?);
            Cow::Owned(format!("{VERTEX_VERSION}/projects/{project}/locations/{region}/{path}"))
        } else {
            Cow::Borrowed(path)
        };
        let mut segments = whole.split('/');
        let region = segments.find(|segment| *segment == "locations").and_then(|_| segments.next());
        let region = region.or(self.region.as_deref()).unwrap_or("global");
        is_label(region).then_some(())?;
        let host = match region {
            "global" => "aiplatform.googleapis.com".to_owned(),
            "us" | "eu" => format!("aiplatform.{region}.rep.googleapis.com"),
            _ => format!("{region}-aiplatform.googleapis.com"),
        };
        Some((Some(host), whole))
    }

    /// `RESOURCE/DEPLOYMENT/…`, `RESOURCE/openai/…`, or `openai/…` of the resource whose address is set.
    fn azure<'a>(&self, path: &'a str) -> Option<(Option<String>, Cow<'a, str>)> {
        let (first, rest) = path.split_once('/')?;
        if first == "openai" {
            return self.own_base.then_some((None, path.into()));
        }
        is_label(first).then_some(())?;
        let host = format!("{first}.openai.azure.com");
        // A key that is set is for one resource, and must not go to another that a caller names.
        let ours = self.base.host().unwrap_or_default();
        if self.own_base && ours.ends_with(".azure.com") && !ours.starts_with(&format!("{first}.")) {
            return None;
        }
        if rest.starts_with("openai/") {
            return Some((Some(host), rest.into()));
        }
        let (deployment, rest) = rest.split_once('/')?;
        Some((Some(host), format!("openai/deployments/{deployment}/{rest}").into()))
    }

    /// `bedrock-runtime/REGION/…`, or `model/…` in the region that is set. Segments are written as Amazon's own clients
    /// write them, since the signature is over that form.
    fn bedrock<'a>(&self, path: &'a str) -> Option<(Option<String>, Cow<'a, str>)> {
        let named = path.split_once('/').filter(|(service, _)| BEDROCK.contains(service));
        let (service, region, rest) =
            match named.and_then(|(service, rest)| Some((service, rest.split_once('/')?))) {
                Some((service, (region, rest))) => (service, region, rest),
                None => (BEDROCK[0], self.region(), path),
            };
        is_label(region).then_some(())?;
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let host = format!("{service}.{region}.{domain}");
        let rest: Vec<String> = rest.split('/').map(|segment| encoded(&decoded(segment))).collect();
        Some((Some(host), rest.join("/").into()))
    }

    /// The region that requests are made in where their path names none.
    #[must_use]
    pub fn region(&self) -> &str {
        self.region.as_deref().unwrap_or(REGION)
    }

    /// The region of an address of Amazon's; the one that is set where it tells none.
    #[must_use]
    pub(crate) fn region_of<'a>(&'a self, uri: &'a Uri) -> &'a str {
        let host = uri.host().unwrap_or_default();
        let mut labels = host.split('.');
        match (labels.next(), labels.next()) {
            (Some(service), Some(region)) if BEDROCK.contains(&service) => region,
            _ => self.region(),
        }
    }

    /// What a path of the provider's own API asks for, whatever its body says.
    #[must_use]
    pub fn asked(&self, path: &str) -> Asked {
        let path = path.trim_matches('/');
        let mut asked = Asked { dialect: None, model: None, counts: false };
        match self.place {
            Place::Base => {
                asked.counts = COUNTING.iter().any(|counting| path.ends_with(counting));
                // Replicate's official models are asked in the path.
                let named =
                    path.split_once("models/").and_then(|(_, rest)| rest.strip_suffix("/predictions"));
                asked.model = named.filter(|_| self.dialect == Dialect::Other).map(str::to_owned);
                // OpenAI's dialect behind its own door.
                let door = self.door.is_some_and(|door| path.contains(&format!("{door}/")));
                asked.dialect = Some(Dialect::OpenAi).filter(|_| door);
            }
            Place::Gemini | Place::Vertex => {
                if let Some((model, verb)) = model_and_verb(path) {
                    asked.model = Some(decoded(model).into_owned());
                    asked.counts = verb == "countTokens";
                    let anthropic = path.contains("publishers/anthropic/");
                    let raw = verb.ends_with("awPredict");
                    asked.dialect = Some(match raw {
                        true if anthropic => Dialect::Anthropic,
                        true => Dialect::OpenAi,
                        false => Dialect::Gemini,
                    });
                } else if path.contains("/openai/") || path.contains("/endpoints/") {
                    asked.dialect = Some(Dialect::OpenAi);
                }
            }
            Place::Azure => {
                let mut segments = path.split('/');
                let deployment = match (segments.next(), segments.next(), segments.next()) {
                    (Some("openai"), Some("deployments"), deployment) => deployment,
                    (_, Some("openai"), Some("deployments")) => segments.next(),
                    (Some("openai"), ..) | (_, Some("openai"), _) => None,
                    (_, deployment, _) => deployment,
                };
                asked.model = deployment.map(|name| decoded(name).into_owned());
            }
            Place::Bedrock => {
                let mut segments = path.split('/').skip_while(|segment| *segment != "model").skip(1);
                asked.model = segments.next().map(|name| decoded(name).into_owned());
                // Only whole answers of a model's own are bare; streamed they stand in Bedrock's events.
                let claude = asked.model.as_ref().is_some_and(|model| model.contains("anthropic."));
                let verb = segments.next();
                asked.counts = verb == Some("count-tokens");
                asked.dialect = match verb {
                    Some("invoke") if claude => Some(Dialect::Anthropic),
                    _ if path.contains("openai/v1/") => Some(Dialect::OpenAi),
                    _ => Some(Dialect::Bedrock),
                };
            }
        }
        asked
    }

    /// Where the list of its models is, which costs nothing; nothing where its address is not known.
    #[must_use]
    pub fn models_url(&self) -> Option<Uri> {
        let (path, query) = match self.place {
            Place::Base if self.dialect == Dialect::Cohere => ("v1/models".to_owned(), None),
            Place::Base => ("models".to_owned(), None),
            Place::Gemini => ("v1beta/models".to_owned(), None),
            Place::Vertex => ("v1beta1/publishers/google/models".to_owned(), None),
            Place::Azure => match &self.api_version {
                Some(version) => ("openai/models".to_owned(), Some(format!("api-version={version}"))),
                None => ("openai/v1/models".to_owned(), None),
            },
            // Beside the service that runs them.
            Place::Bedrock => (format!("bedrock/{}/foundation-models", self.region()), None),
        };
        self.url(&path, query.as_deref())
    }

    /// What a model of the provider's is asked in where the client's dialect is not spoken.
    #[must_use]
    pub fn dialect_of(&self, model: &str) -> Dialect {
        match self.place {
            Place::Vertex => match vertex_model(model) {
                ("google", _) => Dialect::Gemini,
                ("anthropic", _) => Dialect::Anthropic,
                _ => Dialect::OpenAi,
            },
            Place::Base if self.door.is_some() => Dialect::OpenAi,
            Place::Base | Place::Gemini | Place::Azure | Place::Bedrock => self.dialect,
        }
    }

    /// How a model is asked in a dialect; nothing where it is not spoken there. `task` is the path that OpenAI and
    /// Anthropic have for it, such as `chat/completions`.
    #[must_use]
    pub fn way(&self, dialect: Dialect, task: &str, model: &str, stream: bool) -> Option<Way> {
        let plain = |path: String| Way { path, query: None, model: model.to_owned(), instead: None };
        let door = || Some(format!("{}/{task}", self.door?));
        match self.place {
            Place::Base => {
                let native = self.dialect == dialect || (dialect == Dialect::Anthropic && self.messages);
                if native {
                    return Some(plain(task.to_owned()));
                }
                if dialect == Dialect::OpenAi { door().map(plain) } else { None }
            }
            Place::Gemini => match dialect {
                Dialect::Gemini => {
                    let (verb, query) = generate(stream);
                    let path = format!("v1beta/models/{}:{verb}", encoded(model));
                    Some(Way { query, ..plain(path) })
                }
                // Of what Google answers in OpenAI's dialect, embeddings alone say all that Gemini's own says.
                Dialect::OpenAi if task == "embeddings" => door().map(plain),
                _ => None,
            },
            Place::Vertex => {
                let (publisher, name) = vertex_model(model);
                let at = |verb| format!("publishers/{publisher}/models/{}:{verb}", encoded(name));
                match (publisher, dialect) {
                    ("google", Dialect::Gemini) => {
                        let (verb, query) = generate(stream);
                        Some(Way { query, model: name.to_owned(), ..plain(at(verb)) })
                    }
                    ("anthropic", Dialect::Anthropic) if task == "messages" => {
                        let verb = if stream { "streamRawPredict" } else { "rawPredict" };
                        let instead = Some(VERTEX_ANTHROPIC);
                        Some(Way { model: name.to_owned(), instead, ..plain(at(verb)) })
                    }
                    ("google" | "anthropic", _) => None,
                    (_, Dialect::OpenAi) if task == "chat/completions" => {
                        Some(plain(format!("endpoints/openapi/{task}")))
                    }
                    _ => None,
                }
            }
            Place::Azure => match (dialect, &self.api_version) {
                (Dialect::OpenAi, None) => Some(plain(format!("openai/v1/{task}"))),
                (Dialect::OpenAi, Some(version)) => {
                    let path = format!("openai/deployments/{}/{task}", encoded(model));
                    Some(Way { query: Some(format!("api-version={version}")), ..plain(path) })
                }
                _ => None,
            },
            Place::Bedrock => {
                let verb = if stream { "converse-stream" } else { "converse" };
                let path = format!("model/{}/{verb}", encoded(model));
                (dialect == Dialect::Bedrock).then(|| plain(path))
            }
        }
    }

    /// How the tokens of a prompt for a model are counted, and in which dialect; nothing where the provider does not count
    /// them.
    #[must_use]
    pub fn counting(&self, model: &str) -> Option<(Dialect, Way)> {
        let way =
            |path: String, model: &str| Way { path, query: None, model: model.to_owned(), instead: None };
        match self.place {
            Place::Base if self.dialect == Dialect::Anthropic || self.messages => {
                Some((Dialect::Anthropic, way(COUNTING[0].to_owned(), model)))
            }
            // OpenAI alone; who speaks its dialect does not count.
            Place::Base if self.speaker.openai => Some((Dialect::OpenAi, way(COUNTING[1].to_owned(), model))),
            Place::Gemini => {
                let path = format!("v1beta/models/{}:countTokens", encoded(model));
                Some((Dialect::Gemini, way(path, model)))
            }
            Place::Vertex => match vertex_model(model) {
                ("google", name) => {
                    let path = format!("publishers/google/models/{}:countTokens", encoded(name));
                    Some((Dialect::Gemini, way(path, name)))
                }
                _ => None,
            },
            Place::Bedrock => {
                let path = format!("model/{}/count-tokens", encoded(model));
                Some((Dialect::Bedrock, way(path, model)))
            }
            Place::Base | Place::Azure => None,
        }
    }
}

fn generate(stream: bool) -> (&'static str, Option<String>) {
    if stream { ("streamGenerateContent", Some("alt=sse".to_owned())) } else { ("generateContent", None) }
}

/// Publisher and name of a model of Vertex AI's, whose publisher may be left out where the name tells it.
fn vertex_model(model: &str) -> (&str, &str) {
    match model.split_once('/') {
        Some(("google", name)) => ("google", name),
        Some(("anthropic", name)) => ("anthropic", name),
        Some((publisher, name)) => (publisher, name),
        None if model.starts_with("claude") => ("anthropic", model),
        None => ("google", model),
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
