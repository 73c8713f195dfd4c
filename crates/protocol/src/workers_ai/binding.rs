//! The wire form of a Worker's AI binding: what `env.AI.run(model, inputs, options)` sends.
//!
//! The model stands in a header, the body holds inputs and options. Faults are named as the Worker's author wrote
//! them: `prompt`, and not `inputs.prompt`.

use crate::fields::{Object, missing, unsupported};
use crate::{Error, json};
use serde_json::Value;

/// The header that names the model.
pub const MODEL_HEADER: &str = "cf-consn-model-id";

/// The model that the header names; `known` tells whether there is one of that name. A name may have a prefix, which
/// says by whose tests the call is made and nothing about the model.
#[must_use]
pub fn model(header: &str, known: impl Fn(&str) -> bool) -> &str {
    match header.split_once(':') {
        Some((_, rest)) if !known(header) => rest,
        _ => header,
    }
}

/// Reads the body: the inputs.
pub fn parse(body: &[u8]) -> Result<Value, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let inputs = fields.take("inputs").ok_or_else(|| missing("inputs"))?;
    if let Some(options) = fields.object("options")? {
        self::options(options)?;
    }
    fields.finish()?;
    Ok(inputs)
}

/// A gateway is named to log and to cache what passes; neither changes an answer, and there is none here yet.
fn options(mut options: Object) -> Result<(), Error> {
    options.object("gateway")?;
    options.boolean("returnRawResponse")?;
    options.harmless(&["signal", "tags"]);
    for name in ["queueRequest", "websocket"] {
        if options.boolean(name)? == Some(true) {
            return Err(unsupported(&options.path(name)));
        }
    }
    options.boolean("rejectIfBusy")?;
    options.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_prefix_is_no_part_of_the_model() {
        let known = |name: &str| name == "@cf/a/b" || name == "own:tag";
        assert_eq!(model("@cf/a/b", known), "@cf/a/b");
        assert_eq!(model("canary:@cf/a/b", known), "@cf/a/b");
        assert_eq!(model("own:tag", known), "own:tag");
    }

    #[test]
    fn options_that_change_the_answer_are_refused_by_name() {
        let read = |body: Value| parse(body.to_string().as_bytes());
        let gateway = json!({"id": "g", "skipCache": true, "metadata": {"a": 1}});
        let body = json!({"inputs": {"prompt": "a"}, "options": {"gateway": gateway, "queueRequest": false}});
        assert_eq!(read(body), Ok(json!({"prompt": "a"})));
        for (body, param) in [
            (json!({}), "inputs"),
            (json!({"inputs": {}, "more": 1}), "more"),
            (json!({"inputs": {}, "options": {"queueRequest": true}}), "options.queueRequest"),
            (json!({"inputs": {}, "options": {"websocket": true}}), "options.websocket"),
            (json!({"inputs": {}, "options": {"gateway": "g"}}), "options.gateway"),
            (json!({"inputs": {}, "options": {"colour": 1}}), "options.colour"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
