//! Where paths and models of each provider lead.

use super::*;
use crate::provider::Wishes;

fn configured(slug: &str, wishes: Wishes) -> Configured {
    Configured::new(slug, wishes).unwrap()
}

#[test]
fn a_path_is_put_behind_the_base_and_a_version_is_not_doubled() {
    let url = |slug: &str, path: &str, query| {
        configured(slug, Wishes::default()).url(path, query).map(|url| url.to_string())
    };
    for (slug, path, expected) in [
        ("openai", "chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("openai", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("groq", "chat/completions", "https://api.groq.com/openai/v1/chat/completions"),
        ("deepseek", "anthropic/v1/messages", "https://api.deepseek.com/anthropic/v1/messages"),
        ("openai", "v10/x", "https://api.openai.com/v1/v10/x"),
    ] {
        assert_eq!(url(slug, path, None).as_deref(), Some(expected));
    }
    assert_eq!(url("openai", "models", Some("a=b")).unwrap(), "https://api.openai.com/v1/models?a=b");
    for path in ["../x", "a/%2e%2E/x", "a/./b"] {
        assert_eq!(url("openai", path, None), None, "{path}");
    }
}

#[track_caller]
fn leads(provider: &Configured, path: &str, expected: &str) {
    assert_eq!(provider.url(path, None).map(|url| url.to_string()).as_deref(), Some(expected), "{path}");
}

fn asked(provider: &Configured, path: &str) -> (Option<Dialect>, Option<String>) {
    let asked = provider.asked(path);
    (asked.dialect, asked.model)
}

#[test]
fn gemini_names_the_model_in_the_path() {
    let studio = configured("google-ai-studio", Wishes::default());
    let base = "https://generativelanguage.googleapis.com";
    let path = "v1beta/models/gemini-2.5-flash:generateContent";
    leads(&studio, path, &format!("{base}/{path}"));
    leads(&studio, "v1beta/openai/chat/completions", &format!("{base}/v1beta/openai/chat/completions"));
    assert_eq!(asked(&studio, path), (Some(Dialect::Gemini), Some("gemini-2.5-flash".to_owned())));
    assert_eq!(asked(&studio, "v1beta/openai/chat/completions"), (Some(Dialect::OpenAi), None));
    assert_eq!(asked(&studio, "v1beta/models"), (None, None));
    let (dialect, way) = studio.counting("g").unwrap();
    assert_eq!((dialect, way.path.as_str()), (Dialect::Gemini, "v1beta/models/g:countTokens"));
    let way = studio.way(Dialect::Gemini, "", "gemini-2.5-flash", true).unwrap();
    assert_eq!(way.path, "v1beta/models/gemini-2.5-flash:streamGenerateContent");
    assert_eq!(way.query.as_deref(), Some("alt=sse"));
    assert_eq!(studio.way(Dialect::OpenAi, "chat/completions", "g", false), None);
    let way = studio.way(Dialect::OpenAi, "embeddings", "g", false).unwrap();
    assert_eq!(way.path, "v1beta/openai/embeddings");
    // A slash in a name must not lead elsewhere.
    let way = studio.way(Dialect::Gemini, "", "../x", false).unwrap();
    assert_eq!(way.path, "v1beta/models/..%2Fx:generateContent");
}

#[test]
fn vertex_has_an_address_for_each_region_and_a_publisher_for_each_model() {
    let set = |region: &str| {
        let (region, project) = (Some(region.to_owned()), Some("p".to_owned()));
        configured("google-vertex-ai", Wishes { region, project, ..Wishes::default() })
    };
    let vertex = set("europe-west4");
    for (region, host) in [
        ("us-central1", "us-central1-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ] {
        let path =
            format!("v1beta1/projects/x/locations/{region}/publishers/google/models/g:generateContent");
        leads(&vertex, &path, &format!("https://{host}/{path}"));
        assert_eq!(asked(&vertex, &path), (Some(Dialect::Gemini), Some("g".to_owned())));
    }
    for path in ["v1/projects/x/locations/evil.com%2F/x", "v1/projects/x/locations/a.b/x"] {
        assert_eq!(vertex.url(path, None), None, "{path}");
    }
    let way = vertex.way(Dialect::Anthropic, "messages", "claude-sonnet-4-5@20250929", true).unwrap();
    leads(
        &vertex,
        &way.path,
        "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4/publishers/anthropic/models/claude-sonnet-4-5%4020250929:streamRawPredict",
    );
    assert_eq!(way.instead, Some(("anthropic_version", "\"vertex-2023-10-16\"")));
    assert_eq!(
        asked(&vertex, &way.path),
        (Some(Dialect::Anthropic), Some("claude-sonnet-4-5@20250929".to_owned()))
    );
    let way = vertex.way(Dialect::Gemini, "", "google/gemini-2.5-pro", false).unwrap();
    assert_eq!(
        (way.path.as_str(), way.model.as_str()),
        ("publishers/google/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro")
    );
    let way = vertex
        .way(Dialect::OpenAi, "chat/completions", "meta/llama-4-scout-17b-16e-instruct-maas", false)
        .unwrap();
    assert_eq!(way.path, "endpoints/openapi/chat/completions");
    for (model, dialect) in [
        ("gemini-2.5-pro", Dialect::Gemini),
        ("claude-x", Dialect::Anthropic),
        ("meta/llama", Dialect::OpenAi),
    ] {
        assert_eq!(vertex.dialect_of(model), dialect, "{model}");
    }
    // Without a project nobody can say where a model is.
    assert_eq!(
        configured("google-vertex-ai", Wishes::default()).url("publishers/google/models/g:x", None),
        None
    );
}

#[test]
fn azure_has_an_address_for_each_resource_and_a_key_goes_to_its_own_alone() {
    let azure = configured("azure-openai", Wishes::default());
    let path = "res/dep/chat/completions";
    leads(&azure, path, "https://res.openai.azure.com/openai/deployments/dep/chat/completions");
    assert_eq!(asked(&azure, path), (None, Some("dep".to_owned())));
    leads(&azure, "res/openai/v1/responses", "https://res.openai.azure.com/openai/v1/responses");
    for path in ["openai/v1/responses", "evil.com%2F/d/x", "a.b/d/x", "res"] {
        assert_eq!(azure.url(path, None), None, "{path}");
    }
    for base in ["https://mine.openai.azure.com", "https://mine.openai.azure.com/openai/v1/"] {
        let mine =
            configured("azure-openai", Wishes { base_url: Some(base.to_owned()), ..Wishes::default() });
        assert_eq!(mine.url("other/dep/chat/completions", None), None);
        leads(&mine, "mine/dep/x", "https://mine.openai.azure.com/openai/deployments/dep/x");
        let way = mine.way(Dialect::OpenAi, "chat/completions", "gpt-4o", false).unwrap();
        leads(&mine, &way.path, "https://mine.openai.azure.com/openai/v1/chat/completions");
    }
    let (base_url, api_version) =
        (Some("https://m.openai.azure.com".to_owned()), Some("2024-10-21".to_owned()));
    let older = configured("azure-openai", Wishes { base_url, api_version, ..Wishes::default() });
    let way = older.way(Dialect::OpenAi, "chat/completions", "gpt-4o", false).unwrap();
    assert_eq!(way.path, "openai/deployments/gpt-4o/chat/completions");
    assert_eq!(way.query.as_deref(), Some("api-version=2024-10-21"));
    assert_eq!(asked(&older, &way.path).1.as_deref(), Some("gpt-4o"));
}

#[test]
fn bedrock_has_an_address_for_each_region_and_names_are_written_as_they_are_signed() {
    let bedrock = configured("aws-bedrock", Wishes::default());
    let host = "https://bedrock-runtime.us-west-2.amazonaws.com";
    for name in ["anthropic.claude-v2:1", "anthropic.claude-v2%3A1"] {
        let path = format!("bedrock-runtime/us-west-2/model/{name}/invoke");
        leads(&bedrock, &path, &format!("{host}/model/anthropic.claude-v2%3A1/invoke"));
        let expected = (Some(Dialect::Anthropic), Some("anthropic.claude-v2:1".to_owned()));
        assert_eq!(asked(&bedrock, &path), expected);
    }
    let url = bedrock.url("bedrock-runtime/us-west-2/model/m/converse", None).unwrap();
    assert_eq!(bedrock.region_of(&url), "us-west-2");
    leads(&bedrock, "model/m/converse", "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse");
    assert_eq!(asked(&bedrock, "model/m/converse"), (Some(Dialect::Bedrock), Some("m".to_owned())));
    for path in ["bedrock-runtime/evil.com/model/m/converse", "bedrock-runtime/a@b/model/m/converse"] {
        assert_eq!(bedrock.url(path, None), None, "{path}");
    }
    let way = bedrock.way(Dialect::Bedrock, "", "us.amazon.nova-pro-v1:0", true).unwrap();
    assert_eq!(way.path, "model/us.amazon.nova-pro-v1%3A0/converse-stream");
}

#[test]
fn a_provider_with_a_door_is_asked_there_by_name_and_by_its_own_paths_in_its_own_dialect() {
    let cohere = configured("cohere", Wishes::default());
    let way = cohere.way(Dialect::OpenAi, "chat/completions", "command-a-03-2025", false).unwrap();
    leads(&cohere, &way.path, "https://api.cohere.com/compatibility/v1/chat/completions");
    assert_eq!(asked(&cohere, &way.path).0, Some(Dialect::OpenAi));
    assert_eq!((asked(&cohere, "v2/chat").0, cohere.dialect), (None, Dialect::Cohere));
    assert_eq!(cohere.dialect_of("command-a-03-2025"), Dialect::OpenAi);
    let replicate = configured("replicate", Wishes::default());
    let path = "v1/models/meta/llama-2-7b/predictions";
    leads(&replicate, path, "https://api.replicate.com/v1/models/meta/llama-2-7b/predictions");
    assert_eq!(asked(&replicate, path).1.as_deref(), Some("meta/llama-2-7b"));
}

#[test]
fn the_list_of_models_is_where_each_provider_has_it() {
    let of = |slug: &str, wishes: Wishes| configured(slug, wishes).models_url().map(|url| url.to_string());
    let azure = || Some("https://res.openai.azure.com".to_owned());
    let versioned =
        Wishes { base_url: azure(), api_version: Some("2024-10-21".to_owned()), ..Wishes::default() };
    for (slug, wishes, expected) in [
        ("openai", Wishes::default(), Some("https://api.openai.com/v1/models")),
        ("anthropic", Wishes::default(), Some("https://api.anthropic.com/v1/models")),
        ("cohere", Wishes::default(), Some("https://api.cohere.com/v1/models")),
        (
            "google-ai-studio",
            Wishes::default(),
            Some("https://generativelanguage.googleapis.com/v1beta/models"),
        ),
        ("aws-bedrock", Wishes::default(), Some("https://bedrock.us-east-1.amazonaws.com/foundation-models")),
        ("azure-openai", Wishes::default(), None),
        (
            "azure-openai",
            Wishes { base_url: azure(), ..Wishes::default() },
            Some("https://res.openai.azure.com/openai/v1/models"),
        ),
        (
            "azure-openai",
            versioned,
            Some("https://res.openai.azure.com/openai/models?api-version=2024-10-21"),
        ),
    ] {
        assert_eq!(of(slug, wishes).as_deref(), expected, "{slug}");
    }
}

/// What counts tokens costs nothing, and is entered nowhere.
#[test]
fn who_counts_tokens_is_asked_where_that_is_known_as_counting() {
    let mut counting = Vec::new();
    for provider in super::super::PROVIDERS {
        let wishes = Wishes { base_url: Some("http://127.0.0.1:1/v1".to_owned()), ..Wishes::default() };
        let provider = configured(provider.slug, wishes);
        let Some((_, way)) = provider.counting("claude/x") else { continue };
        assert!(provider.asked(&way.path).counts, "{}", way.path);
        counting.push(provider.slug.to_string());
    }
    assert_eq!(counting, ["openai", "anthropic", "google-ai-studio", "aws-bedrock", "hearth"]);
}
