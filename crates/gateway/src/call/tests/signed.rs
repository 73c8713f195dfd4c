//! Keys that are not sent as they are: Amazon's sign, Google's are changed for tokens.

use super::*;
use crate::credential::google::tests::{file, verified};
use crate::provider::ProviderKey;
use protocol::GenerateRequest;

/// A provider of the list, with an upstream that follows its script.
pub(super) struct One {
    _folder: TempDir,
    clock: Arc<Hand>,
    ledger: Gateway,
    proxy: Proxy,
    provider: Arc<Configured>,
    pub(super) fake: Fake,
}

pub(super) async fn one(slug: &str, secret: &str, scripts: Vec<Vec<Step>>) -> One {
    let folder = tempfile::tempdir().unwrap();
    let clock = Hand::new();
    let ledger = gateway(folder.path(), &clock).await;
    ledger.ledger().start(&folder.path().join("processes")).await.unwrap();
    let fake = Fake::new(scripts).await;
    let wishes = Wishes {
        base_url: Some(format!("http://{}", fake.address)),
        keys: vec![ProviderKey { secret: secret.to_owned(), weight: 1 }],
        region: Some("eu-west-1".to_owned()),
        project: Some("p".to_owned()),
        ..Wishes::default()
    };
    let providers = Providers::new([(slug.to_owned(), wishes)].into()).unwrap();
    let provider = Arc::clone(providers.get(slug).unwrap());
    let proxy = Proxy::new(providers, Upstream::new().unwrap(), Arc::clone(&clock) as Arc<dyn Clock>);
    One { _folder: folder, clock, ledger, proxy, provider, fake }
}

impl One {
    pub(super) async fn ask(&self, path: &str, body: &'static str) -> Result<Response<AnswerBody>, Error> {
        let asked = self.provider.asked(path);
        let target = Target {
            provider: Arc::clone(&self.provider),
            dialect: asked.dialect.unwrap_or(self.provider.dialect),
            model: asked.model.unwrap_or_default(),
            url: self.provider.url(path, None).unwrap(),
            body: Pieces::from(Bytes::from_static(body.as_bytes())),
            strip_usage: false,
            most: None,
        };
        let call = Call {
            caller: Caller::default(),
            method: Method::POST,
            headers: HeaderMap::new(),
            key_of: KeyOf::Settings,
            targets: vec![target],
            policy: Policy { attempts: 1, ..Policy::default() },
        };
        self.proxy.call(Some(&self.ledger), call).await
    }

    pub(super) async fn generate(&self, model: &str, request: GenerateRequest) -> Result<Generated, Error> {
        let asking = Asking {
            caller: Caller::default(),
            headers: HeaderMap::new(),
            key_of: KeyOf::Settings,
            policy: Policy { attempts: 1, ..Policy::default() },
            offers: vec![(Arc::clone(&self.provider), model.to_owned())],
            request,
            unlimited: 9,
        };
        self.proxy.generate(Some(&self.ledger), asking).await
    }

    pub(super) async fn line(&self) -> Line {
        while self.ledger.ledger().waiting() > 0 {
            tokio::task::yield_now().await;
        }
        self.ledger.usage(Question::default()).await.unwrap().remove(0)
    }

    /// What came to the upstream under a header, request by request.
    fn seen(&self, name: &str) -> Vec<String> {
        let requests = self.fake.requests.lock().unwrap();
        requests.iter().map(|request| request.header(name).unwrap_or("-").to_owned()).collect()
    }
}

const PREDICT: &str = "v1/projects/p/locations/eu-west-1/publishers/google/models/g:generateContent";

#[tokio::test]
async fn a_service_account_gets_a_token_once_and_a_new_one_before_the_old_one_ends() {
    let grant = |token: &str| {
        json(&format!(r#"{{"access_token":"{token}","expires_in":3599,"token_type":"Bearer"}}"#))
    };
    let tokens = Fake::new(vec![grant("t1"), grant("t2")]).await;
    let secret = file(&format!("http://{}/token", tokens.address));
    let one = one(
        "google-vertex-ai",
        &secret,
        vec![json(r#"{"candidates":[]}"#), json(r#"{"candidates":[]}"#), json(r#"{"candidates":[]}"#)],
    )
    .await;
    for wait in [0, 3200, 100] {
        one.clock.advance(Duration::from_secs(wait));
        one.ask(PREDICT, "{}").await.unwrap();
    }
    assert_eq!(one.seen("authorization"), ["bearer t1", "bearer t1", "bearer t2"]);
    assert_eq!(tokens.count(), 2);
    let form = String::from_utf8(tokens.requests.lock().unwrap()[0].body.clone()).unwrap();
    let claim = form
        .strip_prefix("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=")
        .unwrap();
    assert_eq!(verified(claim)[1]["aud"], format!("http://{}/token", tokens.address));
}

#[tokio::test]
async fn a_token_that_is_refused_is_told_in_words_and_nobody_is_asked() {
    let refusal =
        fake::answer(400, &[], br#"{"error":"invalid_grant","error_description":"Invalid JWT Signature."}"#);
    let tokens = Fake::new(vec![vec![Step::Say(refusal)], json("[]")]).await;
    let one = one("google-vertex-ai", &file(&format!("http://{}/token", tokens.address)), Vec::new()).await;
    let error = one.ask(PREDICT, "{}").await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::KeyRefused);
    assert!(
        error.message.contains("google-vertex-ai") && error.message.contains("Invalid JWT Signature."),
        "{error}"
    );
    let error = one.ask(PREDICT, "{}").await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Upstream, "{error}");
    assert_eq!(one.fake.count(), 0);
}

#[tokio::test]
async fn anthropics_models_on_vertex_have_their_version_in_the_body_and_their_name_in_the_path() {
    let whole = r#"{"type":"message","content":[{"type":"text","text":"x"}],"stop_reason":"end_turn","usage":{"input_tokens":6,"cache_read_input_tokens":4,"output_tokens":5}}"#;
    let one = one("google-vertex-ai", "ya29.t", vec![json(whole), json(whole)]).await;
    let request = GenerateRequest {
        input: protocol::Input::Chat(vec![protocol::Message::text(protocol::Role::User, "a")]),
        choices: 1,
        ..GenerateRequest::default()
    };
    one.generate("claude-sonnet-4-5@20250929", request).await.unwrap();
    let path = "v1/projects/p/locations/eu/publishers/anthropic/models/claude-x:rawPredict";
    one.ask(path, r#"{"anthropic_version":"vertex-2023-10-16"}"#).await.unwrap();
    let line = one.line().await;
    assert_eq!((line.requests, line.input, line.cached_input, line.output), (2, 20, 8, 10));
    let requests = one.fake.requests.lock().unwrap();
    let body: serde_json::Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(
        (&body["anthropic_version"], &body["model"]),
        (&"vertex-2023-10-16".into(), &serde_json::Value::Null)
    );
    let head = &requests[0].head;
    assert!(head.starts_with("post /v1/projects/p/locations/eu-west-1/publishers/anthropic/models/claude-sonnet-4-5%4020250929:rawpredict "), "{head}");
}

#[tokio::test]
async fn each_request_to_amazon_is_signed_anew() {
    let one = one("aws-bedrock", "AK:SK:ST", vec![json(r#"{"output":{}}"#), json(r#"{"output":{}}"#)]).await;
    for _ in 0..2 {
        one.ask("bedrock-runtime/us-west-2/model/anthropic.claude-v2:1/converse", "{}").await.unwrap();
        one.clock.advance(Duration::from_secs(60));
    }
    let (signed, dates) = (one.seen("authorization"), one.seen("x-amz-date"));
    assert!(
        signed[0].contains("credential=ak/") && signed[0].contains("/eu-west-1/bedrock/aws4_request"),
        "{signed:?}"
    );
    assert!(signed[0] != signed[1] && dates[0] != dates[1]);
    assert_eq!(one.seen("x-amz-security-token"), ["st", "st"]);
    let head = one.fake.requests.lock().unwrap()[0].head.clone();
    assert!(head.starts_with("post /model/anthropic.claude-v2%3a1/converse "), "{head}");
}
