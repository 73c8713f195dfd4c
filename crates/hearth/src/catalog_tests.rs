//! Tests of the catalog's reader.

use super::*;
use std::collections::HashSet;

const HASH: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn model(fields: &str) -> String {
    format!("[[model]]\n{fields}\n")
}

#[track_caller]
fn refused(text: &str, because: &str) {
    let error = Catalog::parse(text, "test").expect_err("must be refused").to_string();
    assert!(error.contains(because), "{error}");
}

#[test]
fn the_built_in_catalog_parses_and_holds_the_default_model() {
    let catalog = Catalog::built_in();
    let entry = catalog.find(DEFAULT_MODEL).expect("default model");
    assert_eq!(entry.size(), Some(98_362_432));
    assert!(matches!(entry.files[0].sources[0], Source::Wheels(_)));
    assert_eq!(catalog.find("smollm2").map(|entry| entry.id.as_str()), Some(DEFAULT_MODEL));
}

#[test]
fn every_built_in_entry_names_a_licence_a_context_and_an_architecture_that_runs() {
    let mut files = HashSet::new();
    for entry in Catalog::built_in().entries() {
        assert_ne!(entry.licence, "not stated", "{}", entry.id);
        assert!(entry.context.is_some(), "{}", entry.id);
        let runs = ["llama", "qwen2", "qwen3", "gemma3", "bert"];
        assert!(runs.contains(&entry.architecture.as_str()), "{}", entry.id);
        for file in &entry.files {
            assert!(
                files.insert((entry.id.clone(), file.name.clone())),
                "{} twice in {}",
                file.name,
                entry.id
            );
        }
    }
}

#[test]
fn the_test_models_file_is_a_catalog_too() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test-models.toml");
    let catalog = Catalog::read(&path).expect("parses");
    assert_eq!(catalog.entries().len(), 5);
    for file in catalog.entries().iter().flat_map(|entry| &entry.files) {
        assert!(file.size.is_some() && file.sha256.is_some(), "{}", file.name);
    }
}

#[test]
fn a_hub_source_may_name_a_revision_and_a_folder() {
    let parse = |text: &str| RawSource::One(text.into()).resolve();
    let file = |repo: &str, revision: &str, path: &str| {
        Ok(Source::Hub(HubFile { repo: repo.into(), revision: revision.into(), path: path.into() }))
    };
    assert_eq!(parse("hf:a/b/c.gguf"), file("a/b", "main", "c.gguf"));
    assert_eq!(parse("hf:a/b@v1/d/c.gguf"), file("a/b", "v1", "d/c.gguf"));
    for bad in ["hf:a/b", "hf:a//c", "hf:a/b/../c", "hf:a/b/c?x=1", "ftp:x", ""] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_package_name_can_smuggle_no_option_into_pip() {
    for bad in [
        format!("pypi:--index-url==1/x#sha256={HASH}"),
        format!("pypi:a b==1/x#sha256={HASH}"),
        format!("pypi:a==1 --pre/x#sha256={HASH}"),
        format!("pypi:a==1\n-r/x#sha256={HASH}"),
        "pypi:a==1/x".to_owned(),
        "pypi:a==1/x#sha256=12".to_owned(),
    ] {
        assert!(RawSource::One(bad.clone()).resolve().is_err(), "{bad}");
    }
}

#[test]
fn rules_are_told_by_entry() {
    refused(&model("id = \"A B\""), "an id holds only");
    refused(&model("id = \"a\""), "has no [[model.file]]");
    refused(&model("id = \"a\"\nlicense = \"x\""), "unknown field `license`");
    let file = |fields: &str| model(&format!("id = \"a\"\n[[model.file]]\n{fields}"));
    refused(&file("name = \"../x\"\nsources = [\"path:/x\"]"), "leads out of");
    refused(&file("name = \"/x\"\nsources = [\"path:/x\"]"), "leads out of");
    refused(&file("name = \"x\"\nsources = []"), "has no source");
    refused(&file("name = \"x\"\nsources = [\"https://h/x\"]"), "needs a sha256");
    refused(&file("name = \"x\"\nsha256 = \"12\"\nsources = [\"path:/x\"]"), "not a sha256");
    let one = file("name = \"x\"\nsources = [\"path:/x\"]");
    refused(&format!("{one}{one}"), "already taken");
}

#[test]
fn an_extension_replaces_entries_of_the_same_id_and_takes_over_names() {
    let parse = |text: &str| Catalog::parse(text, "test").expect("parses");
    let file = "[[model.file]]\nname = \"x\"\nsources = [\"path:/x\"]\n";
    let mut catalog =
        parse(&format!("[[model]]\nid = \"a\"\naliases = [\"short\"]\n{file}[[model]]\nid = \"b\"\n{file}"));
    catalog.extend(parse(&format!(
        "[[model]]\nid = \"b\"\ndescription = \"new\"\naliases = [\"short\"]\nprice = {{ input = 0.5, output = 2 }}\n{file}"
    )));
    assert_eq!(catalog.entries().len(), 2);
    let found = catalog.find("short").expect("found");
    assert_eq!((found.id.as_str(), found.description.as_str()), ("b", "new"));
    let price = found.price.expect("price");
    assert_eq!(
        price.cached_input, price.input,
        "without a price of its own, cached input costs as input does"
    );
}

#[test]
fn a_mistyped_id_gets_a_suggestion() {
    assert_eq!(Catalog::built_in().suggest("smollm2-135-instruct"), Some(DEFAULT_MODEL));
    assert_eq!(Catalog::built_in().suggest("xyz"), None);
}

#[test]
fn any_hub_file_can_be_pulled_without_an_entry() {
    let entry = Entry::ad_hoc("hf:a/b/Some-Model-Q4_0.gguf", None).expect("an entry");
    assert_eq!(entry.id, "some-model-q4_0");
    assert_eq!(Entry::ad_hoc("hf:a/b/M.gguf", Some("mine")).map(|entry| entry.id), Ok("mine".into()));
    assert!(Entry::ad_hoc("hf:a/b/model.safetensors", None).is_err());
}

#[test]
fn sampling_settings_are_read_and_held_to_their_ranges() {
    let base = r#"id = "a"
licence = "x"
file = [{ name = "a.gguf", sources = ["path:/a.gguf"] }]
"#;
    let read =
        Catalog::parse(&model(&format!("{base}sampling = {{ temperature = 0.2, top-p = 0.9 }}")), "test")
            .expect("in order");
    let sampling = &read.entries()[0].sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (Some(0.2), Some(0.9), None));
    refused(&model(&format!("{base}sampling = {{ top-p = 0 }}")), "sampling: top-p is 0, not above 0");
    refused(&model(&format!("{base}sampling = {{ top-k = 0 }}")), "top-k is 0");
    refused(&model(&format!("{base}sampling = {{ heat = 1 }}")), "unknown field `heat`");
}
