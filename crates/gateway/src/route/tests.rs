//! Routes: what a graph may be, the walk beside a naive twin, chance within bounds, versions, rates.

mod stored;

use super::*;
use crate::price::Book;
use crate::tests::Hand;
use base::Clock;
use proptest::prelude::*;
use std::time::Duration;
use store::Store;

fn to(id: &str) -> Value {
    json!({"elementId": id})
}

fn start(next: &str) -> Value {
    json!({"id": "start", "type": "start", "outputs": {"next": to(next)}})
}

fn end() -> Value {
    json!({"id": "end", "type": "end", "outputs": {}})
}

fn model(id: &str, fallback: Option<&str>) -> Value {
    let mut outputs = json!({"success": to("end")});
    if let Some(fallback) = fallback {
        outputs["fallback"] = to(fallback);
    }
    let properties = json!({"provider": "openai", "model": id, "timeout": 1000.0, "retries": 1});
    json!({"id": id, "type": "model", "properties": properties, "outputs": outputs})
}

fn conditional(id: &str, yes: &str, no: &str) -> Value {
    let properties = json!({"conditions": {"metadata.a": {"$gt": 4}}});
    json!({"id": id, "type": "conditional", "properties": properties, "outputs": {"true": to(yes), "false": to(no)}})
}

fn rate(id: &str, properties: Value, success: &str, fallback: Option<&str>) -> Value {
    let mut outputs = json!({"success": to(success)});
    if let Some(fallback) = fallback {
        outputs["fallback"] = to(fallback);
    }
    json!({"id": id, "type": "rate", "properties": properties, "outputs": outputs})
}

#[test]
fn both_spellings_of_a_rate_and_a_condition_are_read_alike() {
    let sdk = rate(
        "r",
        json!({"key": "metadata.a", "limit": 5.0, "limitType": "count", "window": 60.0}),
        "m",
        Some("end"),
    );
    let mut docs = rate(
        "r",
        json!({"key": "metadata.a", "limit": 5, "limitType": "count", "interval": 60, "technique": "fixed"}),
        "m",
        Some("end"),
    );
    docs["type"] = "rate_limit".into();
    let graph = |rate: Value| Graph::parse(&json!([start("r"), rate, model("m", None), end()])).unwrap();
    assert_eq!(graph(sdk), graph(docs));
    let with = |name: &str| {
        let mut element = conditional("c", "m", "end");
        element["properties"] = json!({name: {"key": "k"}});
        Graph::parse(&json!([start("c"), element, model("m", None), end()])).unwrap()
    };
    assert_eq!(with("condition"), with("conditions"));
}

#[test]
fn a_member_that_an_element_does_not_have_is_refused_by_its_place() {
    let with = |index: usize, name: &str| {
        let mut elements = json!([start("m"), model("m", None), end()]);
        elements[index]["properties"]["provider"] = "openai".into();
        elements[index]["properties"][name] = 1.into();
        elements
    };
    assert_eq!(members::check(&with(1, "timeout")), Ok(()));
    let error = members::check(&with(1, "tmeout")).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("elements[1].properties.tmeout"));
    assert!(error.message.contains("timeout"), "{error}");
    assert!(members::check(&with(0, "next")).is_err(), "a start has no properties");
    let mut element = model("m", None);
    element["fallback"] = "end".into();
    let error = members::check(&json!([start("m"), element, end()])).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("elements[1].fallback"));
}

#[test]
fn a_graph_that_cannot_be_walked_is_refused_at_its_place() {
    let share = |outputs: Value| json!({"id": "p", "type": "percentage", "outputs": outputs});
    for (elements, at) in [
        (json!([]), "elements"),
        (json!({}), "elements"),
        (json!([end()]), "elements"),
        (json!([start("end"), end(), start("end")]), "elements[2].id"),
        (
            json!([start("end"), end(), {"id": "s2", "type": "start", "outputs": {"next": to("end")}}]),
            "elements[2]",
        ),
        (json!([start("nowhere"), end()]), "elements[0].outputs.next"),
        (json!([start("m"), model("m", Some("start")), end()]), "elements[1].outputs.fallback"),
        (json!([start("m"), model("m", Some("m")), end()]), "elements[1].outputs.fallback"),
        (
            json!([start("a"), model("a", Some("b")), model("b", Some("a")), end()]),
            "elements[2].outputs.fallback",
        ),
        (json!([start("end"), model("m", None), end()]), "elements[1]"),
        (json!([start("end"), {"id": "end", "type": "stop"}]), "elements[1].type"),
        (
            json!([start("end"), {"id": "end", "type": "end", "outputs": {"next": to("start")}}]),
            "elements[1].outputs",
        ),
        (json!([start("p"), share(json!({"10%": to("end")})), end()]), "elements[1].outputs.else"),
        (
            json!([start("p"), share(json!({"60%": to("end"), "50%": to("end")})), end()]),
            "elements[1].outputs",
        ),
        (json!([start("p"), share(json!({"half": to("end")})), end()]), "elements[1].outputs.half"),
        (
            json!([start("p"), share(json!({"50%": "end", "else": to("end")})), end()]),
            "elements[1].outputs.50%",
        ),
        (
            json!([start("c"), {"id": "c", "type": "conditional", "properties": {}, "outputs": {"true": to("end"), "false": to("end")}}, end()]),
            "elements[1].properties.conditions",
        ),
        (
            json!([
                start("r"),
                rate("r", json!({"key": "user", "limit": 1, "window": 1}), "end", None),
                end()
            ]),
            "elements[1].properties.key",
        ),
        (
            json!([
                start("r"),
                rate("r", json!({"key": "key", "limit": 0, "window": 1}), "end", None),
                end()
            ]),
            "elements[1].properties.limit",
        ),
        (
            json!([start("r"), rate("r", json!({"key": "key", "limit": 1}), "end", None), end()]),
            "elements[1].properties.window",
        ),
        (
            json!([
                start("r"),
                rate(
                    "r",
                    json!({"key": "headers.x", "limit": 1, "limitType": "cost", "window": 1}),
                    "end",
                    None
                ),
                end()
            ]),
            "elements[1].properties.key",
        ),
    ] {
        assert_eq!(Graph::parse(&elements).unwrap_err().param.as_deref(), Some(at), "{elements}");
    }
    let mut dynamic = model("m", None);
    dynamic["properties"]["provider"] = "dynamic".into();
    let error = Graph::parse(&json!([start("m"), dynamic, end()])).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("elements[1].properties.provider"));
    let mut onward = model("m", None);
    onward["outputs"]["success"] = to("n");
    let error = Graph::parse(&json!([start("m"), onward, model("n", None), end()])).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("elements[1].outputs.success"));
}

/// The models that a walk asks, where models of these names fail and rates pass as told.
fn walked(elements: &Value, facts: &Facts, failing: &[String], passes: bool) -> Vec<String> {
    let graph = Graph::parse(elements).unwrap();
    let mut walk = Walk::new(&graph, "route", facts);
    let mut asked = Vec::new();
    loop {
        match walk.turn() {
            Turn::End => return asked,
            Turn::Count(..) => walk.told(passes, ""),
            Turn::Ask(_, model) => {
                asked.push(model.model.clone());
                walk.told(!failing.contains(&model.model), "");
            }
        }
    }
}

/// The same, read from the JSON as the documents describe it.
fn naive(
    elements: &Value,
    at: &str,
    facts: &Facts,
    failing: &[String],
    passes: bool,
    asked: &mut Vec<String>,
) {
    let list = elements.as_array().unwrap();
    let element = list.iter().find(|element| element["id"] == at).unwrap();
    let outputs = &element["outputs"];
    let edge = match element["type"].as_str().unwrap() {
        "start" => "next".to_owned(),
        "end" => return,
        "conditional" => {
            let a = facts.metadata.get("a").and_then(Value::as_i64);
            if a.is_some_and(|a| a > 4) { "true" } else { "false" }.to_owned()
        }
        "percentage" => {
            let drawn = draw("route", at, &facts.session);
            let mut end = 0.0;
            let shares = outputs.as_object().unwrap().keys().filter(|name| *name != "else");
            let mut edge = "else".to_owned();
            for name in shares {
                let share: f64 = name.trim_end_matches('%').parse().unwrap();
                if drawn >= end && drawn < end + share {
                    edge = name.clone();
                }
                end += share;
            }
            edge
        }
        "rate" => if passes { "success" } else { "fallback" }.to_owned(),
        "model" => {
            asked.push(at.to_owned());
            if failing.iter().any(|name| name == at) { "fallback" } else { "success" }.to_owned()
        }
        other => panic!("{other}"),
    };
    if let Some(next) = outputs[edge.as_str()]["elementId"].as_str() {
        naive(elements, next, facts, failing, passes, asked);
    }
}

/// Graphs without circles: each element leads to later ones only, and what nothing leads to is left out.
fn graphs() -> impl Strategy<Value = Value> {
    let kinds = prop::collection::vec(
        (0..4u8, any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..99u8),
        1..12,
    );
    kinds.prop_map(|kinds| {
        let count = kinds.len();
        let name = |index: usize| if index < count { format!("e{index}") } else { "end".to_owned() };
        let mut elements = vec![start("e0")];
        for (index, (kind, first, second, share)) in kinds.iter().enumerate() {
            let later = |pick: &prop::sample::Index| name(index + 1 + pick.index(count - index));
            let (id, first, second) = (format!("e{index}"), later(first), later(second));
            elements.push(match kind {
                0 => conditional(&id, &first, &second),
                1 => json!({"id": id, "type": "percentage", "outputs": {format!("{share}%"): to(&first), "else": to(&second)}}),
                2 => rate(&id, json!({"key": "key", "limit": 1, "window": 1}), &first, (share % 2 == 0).then_some(&second)),
                _ => model(&id, (share % 3 != 0).then_some(&second)),
            });
        }
        elements.push(end());
        let mut reached = vec!["start".to_owned()];
        let mut at = 0;
        while at < reached.len() {
            let element = elements.iter().find(|element| element["id"] == reached[at].as_str()).unwrap();
            for output in element["outputs"].as_object().unwrap().values() {
                let id = output["elementId"].as_str().unwrap().to_owned();
                if !reached.contains(&id) {
                    reached.push(id);
                }
            }
            at += 1;
        }
        elements.retain(|element| reached.contains(&element["id"].as_str().unwrap().to_owned()));
        Value::Array(elements)
    })
}

proptest! {
    #[test]
    fn a_walk_asks_what_a_naive_reading_of_the_elements_asks(
        elements in graphs(), a in prop::option::of(0..9i64), session in "[a-z]{0,4}",
        failing in prop::collection::vec(0..12usize, 0..8), passes in any::<bool>(),
    ) {
        let mut facts = Facts { session, ..Facts::default() };
        if let Some(a) = a {
            facts.metadata.insert("a".into(), a.into());
        }
        let failing: Vec<String> = failing.iter().map(|index| format!("e{index}")).collect();
        let mut expected = Vec::new();
        naive(&elements, "start", &facts, &failing, passes, &mut expected);
        prop_assert_eq!(walked(&elements, &facts, &failing, passes), expected);
    }

    /// Six standard deviations of a binomial: less than one in 10^8 for each case.
    #[test]
    fn percentages_are_what_they_say(share in 1..=99u32, salt in any::<u32>()) {
        let elements = json!([
            start("p"), {"id": "p", "type": "percentage", "outputs": {format!("{share}%"): to("a"), "else": to("b")}},
            model("a", None), model("b", None), end(),
        ]);
        let graph = Graph::parse(&elements).unwrap();
        let (sessions, mut hits) = (2000, 0);
        for session in 0..sessions {
            let facts = Facts { session: format!("{salt}-{session}"), ..Facts::default() };
            let mut walk = Walk::new(&graph, "route", &facts);
            let Turn::Ask(first, _) = walk.turn() else { panic!("a model") };
            // The same session takes the same way.
            let mut again = Walk::new(&graph, "route", &facts);
            prop_assert!(matches!(again.turn(), Turn::Ask(second, _) if second == first));
            hits += usize::from(first == "a");
        }
        let share = f64::from(share) / 100.0;
        let bound = 6.0 * (f64::from(sessions) * share * (1.0 - share)).sqrt();
        prop_assert!((hits as f64 - f64::from(sessions) * share).abs() <= bound, "{hits} of {sessions} at {share}");
    }
}
