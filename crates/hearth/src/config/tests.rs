//! Tests of settings: layers, the file's faults, and the rules between settings.

use super::*;
use clap::Parser;

fn parse(text: &str) -> Result<Layer, String> {
    file::parse(text, Path::new("hearth.toml")).map_err(|error| error.to_string())
}

#[track_caller]
fn fault(text: &str, expected: &[&str]) {
    let error = parse(text).expect_err("must be refused");
    for part in expected {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn resolve(layer: Layer) -> Result<Settings, SettingsError> {
    Settings::resolve(layer, Some(Path::new("/data")))
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    layer: Layer,
}

fn flags(args: &[&str]) -> Layer {
    Flags::try_parse_from(std::iter::once(&"hearth").chain(args)).map(|flags| flags.layer).expect("flags")
}

#[test]
fn an_unknown_key_is_told_with_its_line_and_a_suggestion() {
    fault(
        "threads = 2\n\nkv_memory = \"1GiB\"\n",
        &["hearth.toml, line 3", "\"kv_memory\"", "did you mean \"kv-memory\"?"],
    );
    fault("model = \"x\"", &["line 1", "did you mean \"models\"?"]);
    fault("zzzz = 1", &["there are: models, listen"]);
    fault("[server]\nlisten = \"x\"", &["line 1", "\"server\""]);
}

#[test]
fn a_wrong_value_is_told_with_its_line() {
    fault("threads = 2\nthreads = 3", &["line 2"]);
    fault("listen = \"here\"", &["line 1", "is not an address"]);
    fault("\nthreads = 0", &["line 2", "integer `0`, expected a whole number from 1 to 1024"]);
    fault("threads = 1025", &["expected a whole number from 1 to 1024"]);
    fault("context = \"long\"", &["expected a whole number above 0"]);
    fault("models = [{ model = \"a\", nam = \"b\" }]", &["line 1", "unknown field `nam`", "`name`"]);
    fault("models = [3]", &["expected a model's id or path, or a table"]);
    fault("kv-memory = \"much\"", &["is not a size"]);
    fault("api-key = \"\"", &["the key is empty"]);
    fault("quantize = \"int2\"", &["int2"]);
    fault("step-time = \"soon\"", &["neither `auto` nor a time"]);
    fault("step-time = \"0ms\"", &["neither `auto` nor a time"]);
    fault("threads = ", &["line 1"]);
}

#[test]
fn every_key_of_the_file_is_a_setting_and_every_setting_has_a_key() {
    let text = r#"
        models = ["a", { model = "./b.gguf", name = "b", aliases = ["c"], quantize = "int8", price = { input = 1, output = 2.5 } }]
        listen = "0.0.0.0:1"
        api-key = "k"
        threads = 1
        context = 2
        kv-memory = "3MiB"
        kv-type = "int8"
        quantize = "int4"
        packed-weights = "off"
        queue = 4
        step-tokens = 5
        step-time = "80ms"
        speculation = "off"
        shutdown-limit = 6
        responses-retention = 7
        responses-size = "8MiB"
        database = "postgres://u:p@localhost/d"
        durability = "power-loss"
        prices = ["/p.json"]
        cache-size = "9MiB"
        guardrail-judge = "guard"
        providers = { openai = { models = ["m"] } }
        private-providers = "on"
        logs = { payloads = true, payload-limit = "1MiB", strategy = "STOP_INSERTING", retention-days = 0 }
        data-dir = "/d"
    "#;
    let settings = resolve(parse(text).expect("parses")).expect("resolves");
    let expected = Settings {
        models: vec![
            "a".parse().expect("a model"),
            ModelArg {
                name: Some("b".into()),
                aliases: vec!["c".into()],
                target: Target::Path("./b.gguf".into()),
                quantize: Some(Quantize::Int8),
                price: settings.models[1].price,
            },
        ],
        listen: "0.0.0.0:1".parse().expect("an address"),
        api_key: Some("k".parse().expect("a key")),
        threads: Some(1),
        context: Some(Tokens(2)),
        kv_memory: Some(Bytes(3 << 20)),
        kv_type: KvFormat::Int8,
        quantize: Some(Quantize::Int4),
        packed_weights: false,
        queue: 4,
        step_tokens: Tokens(5),
        step_time: StepTime::AtMost(Duration::from_millis(80)),
        speculation: false,
        shutdown_limit: Duration::from_secs(6),
        responses_retention: Duration::from_secs(7 * 86_400),
        responses_size: Bytes(8 << 20),
        database: Some("postgres://u:p@localhost/d".parse().expect("an address")),
        durability: store::Durability::PowerLoss,
        prices: vec!["/p.json".into()],
        cache_size: Bytes(9 << 20),
        guardrail_judge: Some("guard".to_owned()),
        providers: BTreeMap::from([(
            "openai".to_owned(),
            ProviderArg { models: vec!["m".to_owned()], ..ProviderArg::default() },
        )]),
        reach: Reach::Private,
        logs: LogsArg {
            payloads: Some(true),
            payload_limit: settings.logs.payload_limit,
            strategy: Some(gateway::log::Strategy::StopInserting),
            retention_days: Some(0),
            ..LogsArg::default()
        },
        data_dir: "/d".into(),
    };
    assert_eq!(settings, expected);
    let logs = settings.logs.defaults();
    assert_eq!((logs.payload_limit, logs.retention, logs.redaction), (Bytes(1 << 20), None, true));
    assert_eq!(settings.models[1].price.map(|price| price.output.0), Some(2_500_000_000));
    let written = text.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key.trim());
    assert_eq!(written.collect::<Vec<_>>(), KEYS);
}

#[test]
fn flags_lie_over_the_file_and_the_file_over_the_defaults() {
    let file = parse("threads = 2\ncontext = 100\nmodels = [\"a\"]").expect("parses");
    let settings = resolve(flags(&["--threads", "7"]).over(file)).expect("resolves");
    assert_eq!(settings.threads, Some(7));
    assert_eq!(settings.context, Some(Tokens(100)));
    assert_eq!(settings.models.len(), 1);
    assert_eq!(settings.queue, 1024);
    assert_eq!(settings.kv_type, KvFormat::F16);
    assert!(settings.packed_weights);
    assert!(settings.speculation);
    assert_eq!(settings.listen, "127.0.0.1:8790".parse().expect("an address"));
    assert_eq!(settings.data_dir, Path::new("/data"));
}

#[test]
fn a_port_alone_and_localhost_mean_loopback() {
    for (text, loopback) in [
        ("0.0.0.0", false),
        ("192.168.1.5:80", false),
        ("[::]:8790", false),
        ("127.0.0.1:1", true),
        ("localhost:1", true),
        ("[::1]:1", true),
        (":1", true),
        ("1", true),
        ("localhost", true),
    ] {
        let settings = resolve(flags(&["--listen", text])).expect("resolves");
        assert_eq!(settings.listen.ip().is_loopback(), loopback, "{text}");
    }
}

#[test]
fn a_model_is_an_id_a_source_or_a_path() {
    let target = |text: &str| text.parse::<ModelArg>().map(|arg| (arg.name, arg.target));
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(target("qwen3-4b"), Ok((None, Target::Id("qwen3-4b".into()))));
    assert_eq!(target("x=qwen3-4b"), Ok((named("x"), Target::Id("qwen3-4b".into()))));
    assert_eq!(target("script:a/t.json"), Ok((None, Target::Script("a/t.json".into()))));
    assert_eq!(target("x=script:t=1.json"), Ok((named("x"), Target::Script("t=1.json".into()))));
    assert_eq!(target("script:t=1.json"), Ok((None, Target::Script("t=1.json".into()))));
    assert!(target("x=script:").is_err());
    assert_eq!(target("./m"), Ok((None, Target::Path("./m".into()))));
    assert_eq!(target("m.gguf"), Ok((None, Target::Path("m.gguf".into()))));
    assert_eq!(target("x=/a=b/m"), Ok((named("x"), Target::Path("/a=b/m".into()))));
    assert_eq!(target("/a=b/m"), Ok((None, Target::Path("/a=b/m".into()))));
    assert_eq!(target("hf:a/b/c.gguf"), Ok((None, Target::Source("hf:a/b/c.gguf".into()))));
    assert_eq!(target("x=hf:a/b/c.gguf"), Ok((named("x"), Target::Source("hf:a/b/c.gguf".into()))));
    for bad in ["", "=x", "x=", "a b=x"] {
        assert!(target(bad).is_err(), "{bad}");
    }
}

#[test]
fn two_models_cannot_answer_to_one_name() {
    let same = flags(&["--model", "a=./x.gguf", "--model", "a=./y.gguf"]);
    assert_eq!(resolve(same), Err(SettingsError::SameName("a".into())));
}

#[test]
fn the_named_file_counts_then_the_working_folder_then_the_data_folder() {
    let (work, data) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
    let find = |named: Option<&Path>| file::find(named, work.path(), Some(data.path()));
    assert!(find(None).expect("no file is fine").is_none());
    std::fs::write(data.path().join("hearth.toml"), "threads = 1").expect("write");
    let threads =
        |found: Option<(PathBuf, Layer)>| found.and_then(|(_, layer)| layer.threads).map(Count::get);
    assert_eq!(threads(find(None).expect("found")), Some(1));
    std::fs::write(work.path().join("hearth.toml"), "threads = 2").expect("write");
    assert_eq!(threads(find(None).expect("found")), Some(2));
    let other = work.path().join("other.toml");
    assert!(find(Some(&other)).is_err(), "a named file must be there");
    std::fs::write(&other, "threads = 3\nmodels = [\"./m.gguf\", \"a=script:t.json\"]").expect("write");
    let (_, layer) = find(Some(&other)).expect("found").expect("named");
    assert_eq!(layer.threads.map(Count::get), Some(3));
    let models = layer.models.expect("models");
    assert_eq!(
        models[0].target,
        Target::Path(work.path().join("./m.gguf")),
        "paths start at the file's folder"
    );
    assert_eq!(models[1].target, Target::Script(work.path().join("t.json")));
}

#[test]
fn a_key_is_never_shown() {
    let settings = resolve(flags(&["--api-key", "very-secret"])).expect("resolves");
    assert!(!format!("{settings:?}").contains("very-secret"));
}

#[test]
fn a_key_that_cannot_be_one_is_refused_without_being_shown_and_the_end_of_its_line_is_no_part_of_it() {
    let layer = flags(&["--api-key", "very-secret\n"]);
    assert_eq!(layer.api_key.expect("a key").secret(), "very-secret");
    for wrong in ["very-secret\nx", "very-secret ü", ""] {
        let error =
            Flags::try_parse_from(["hearth", "--api-key", wrong]).map(drop).expect_err("refused").to_string();
        assert!(error.contains("--api-key") && !error.contains("very-secret"), "{error}");
    }
}

#[test]
fn a_databases_password_is_never_shown() {
    let url = "postgres://me:very-secret@localhost/d";
    let layer = flags(&["--database", url]);
    let told = format!("{layer:?} {:?}", resolve(layer.clone()).expect("resolves"));
    assert!(told.contains("localhost") && !told.contains("very-secret"), "{told}");
    for wrong in ["postgres://me:very-secret@localhost:port/d", "mysql://me:very-secret@h/d", "very-secret"] {
        let error = resolve(flags(&["--database", wrong])).expect_err("refused").to_string();
        assert!(error.contains("--database") && error.contains("postgres://USER"), "{error}");
        assert!(!error.contains("very-secret"), "{error}");
    }
    for (broken, line) in [
        (format!("threads = 1\ndatabase = \"{url}"), "line 2"),
        (format!("database = \"{url}\" x"), "line 1"),
        (format!("database = \"{url}\"\ndatabase = \"{url}\""), "line 2"),
        (format!("database = [\"{url}\"]"), "line 1"),
        ("api-key = \"very-secret".to_owned(), "line 1"),
        ("api-key = \"very-secret ü\"".to_owned(), "line 1"),
        ("[providers.openai]\nkeys = [\"very-secret\"]".to_owned(), "line 2"),
        ("[providers.openai]\nkeys = [\n  \"very-secret\",\n]".to_owned(), "line 3"),
        ("[providers.openai]\nkeys = [\n  { key = \"very-secret ü\" },\n]".to_owned(), "line 3"),
        ("[providers.openai]\nkeys = \"very-secret, expected \\\" x\"".to_owned(), "line 2"),
    ] {
        let error = parse(&broken).expect_err("refused");
        assert!(error.contains(line) && !error.contains("very-secret"), "{error}");
    }
}

/// The first TOML block of a document.
fn example(document: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(document);
    let text = std::fs::read_to_string(path).expect("the document is there");
    let block = text.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("a TOML block").to_owned()
}

#[test]
fn the_documents_examples_are_right() {
    let layer = parse(&example("configuration.md")).expect("parses");
    assert_eq!(layer.models.map(|models| models.len()), Some(3));
    let hash = "a".repeat(64);
    let catalog = example("models.md").replace("7485…", &hash);
    let catalog = crate::catalog::Catalog::parse(&catalog, "docs/models.md").expect("parses");
    assert!(catalog.find("our-model-latest").is_some());
}

#[test]
fn the_document_names_every_setting() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(path).expect("the document is there");
    for key in KEYS {
        assert!(text.contains(&format!("| `{key}`")), "{key}");
    }
}

#[test]
fn what_is_set_for_logs_is_held_to_the_limits_of_a_gateways_own_settings() {
    for (line, expected) in [
        ("most = 99999999999", "expected 1 to 10000000"),
        ("most = 0", "expected 1 to 10000000"),
        ("payload-limit = \"999999999MiB\"", "10 MiB"),
        ("retention-days = 99999999", "expected 0 to 36500"),
        ("collectors = [\"ftp://x\"]", "http:// or https://"),
    ] {
        let error = parse(&format!("[logs]\n{line}")).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("line 2"), "{line}: {error}");
    }
    assert!(parse("[logs]\nmost = 5\npayload-limit = \"1MiB\"\ncollectors = [\"http://c:4318\"]").is_ok());
}
