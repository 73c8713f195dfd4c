//! Tokens of a text or of a conversation, and back, in vLLM's form: OpenAI has none.

use super::messages::{Rules, messages};
use super::parameters as shared;
use super::{local, to_json, tools};
use crate::fields::{self, Object, element, missing};
use crate::{Error, GenerateRequest, Input, Places, Token, TokenizeRequest, json};
use serde::Serialize;

/// What to tokenize, and how to tell it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenize {
    /// What.
    pub of: Of,
    /// Whether the tokens' texts are wanted beside their ids.
    pub texts: bool,
    /// Where what the backend names was written.
    pub places: Places,
}

/// What is tokenized.
#[derive(Clone, Debug, PartialEq)]
pub enum Of {
    /// A text as it stands.
    Text(TokenizeRequest),
    /// The prompt that a conversation makes.
    Chat(Box<GenerateRequest>),
}

impl Of {
    /// The model's id as the caller wrote it.
    #[must_use]
    pub fn model(&self) -> &str {
        match self {
            Self::Text(request) => &request.model,
            Self::Chat(request) => &request.model,
        }
    }
}

/// Reads a body of `tokenize`.
pub fn parse(body: &[u8]) -> Result<Tokenize, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let mut places = Places::default();
    let model = shared::model(&mut fields)?;
    let texts = fields.boolean("return_token_strs")?.unwrap_or(false);
    let special = fields.boolean("add_special_tokens")?;
    let prompt = fields.string("prompt")?;
    let of = match (prompt, messages(&mut fields, Rules::OpenAi, &mut places)?) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid("prompt", "Give either 'prompt' or 'messages', not both"));
        }
        (None, None) => {
            let message = "One of 'prompt' and 'messages' is needed".to_owned();
            return Err(Error { message, ..missing("prompt") });
        }
        (Some(text), None) => Of::Text(TokenizeRequest { model, text, add_special: special.unwrap_or(true) }),
        (None, Some(_)) if special == Some(true) => {
            let message = "'add_special_tokens' must be false with 'messages': the chat template writes them";
            return Err(Error::invalid("add_special_tokens", message));
        }
        (None, Some(messages)) => {
            let tooling = tools::tooling(&mut fields, &mut places)?;
            let mut template_variables = local::template_variables(&mut fields, &mut places)?;
            if let Some(add) = fields.boolean("add_generation_prompt")? {
                template_variables.insert("add_generation_prompt".to_owned(), add.into());
            }
            Of::Chat(Box::new(GenerateRequest {
                model,
                input: Input::Chat(messages),
                tools: tooling.tools,
                tool_choice: tooling.choice,
                reasoning_effort: local::reasoning_effort(&mut fields)?,
                template_variables,
                choices: 1,
                ..GenerateRequest::default()
            }))
        }
    };
    fields.finish()?;
    Ok(Tokenize { of, texts, places })
}

/// Reads a body of `detokenize`: the model and the tokens.
pub fn parse_tokens(body: &[u8]) -> Result<(String, Vec<u32>), Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let model = shared::model(&mut fields)?;
    let tokens = fields.array("tokens")?.ok_or_else(|| missing("tokens"))?;
    fields.finish()?;
    let ids = tokens.iter().enumerate().map(|(index, value)| fields::token(&element("tokens", index), value));
    Ok((model, ids.collect::<Result<_, _>>()?))
}

/// The answer of `tokenize`; `context` is the most tokens of a sequence.
#[must_use]
pub fn tokens(tokens: &[Token], texts: bool, context: u32) -> String {
    #[derive(Serialize)]
    struct Tokens<'a> {
        count: usize,
        max_model_len: u32,
        tokens: Vec<u32>,
        token_strs: Option<Vec<&'a str>>,
    }
    to_json(&Tokens {
        count: tokens.len(),
        max_model_len: context,
        tokens: tokens.iter().map(|token| token.id).collect(),
        token_strs: texts.then(|| tokens.iter().map(|token| token.text.as_str()).collect()),
    })
}

/// The answer of `detokenize`.
#[must_use]
pub fn text(text: &str) -> String {
    #[derive(Serialize)]
    struct Text<'a> {
        prompt: &'a str,
    }
    to_json(&Text { prompt: text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, Role};
    use serde_json::{Value, json};

    fn read(body: &Value) -> Result<Tokenize, Error> {
        parse(body.to_string().as_bytes())
    }

    #[test]
    fn a_text_or_a_conversation_is_tokenized() {
        let text = read(&json!({"model": "m", "prompt": "hi", "add_special_tokens": false})).unwrap();
        assert_eq!(
            text.of,
            Of::Text(TokenizeRequest { model: "m".into(), text: "hi".into(), add_special: false })
        );
        let chat = read(&json!({
            "model": "m", "messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false,
            "tools": [{"type": "function", "function": {"name": "f"}}], "return_token_strs": true,
        }))
        .unwrap();
        assert!(chat.texts);
        let Of::Chat(request) = chat.of else { panic!("a conversation") };
        assert_eq!(request.input, Input::Chat(vec![Message::text(Role::User, "hi")]));
        assert_eq!(request.template_variables["add_generation_prompt"], false);
        assert_eq!(request.tools[0].name, "f");
    }

    #[test]
    fn wrong_bodies_are_named() {
        let chat = json!([{"role": "user", "content": "a"}]);
        for (body, param) in [
            (json!({"prompt": "a"}), "model"),
            (json!({"model": "m"}), "prompt"),
            (json!({"model": "m", "prompt": 3}), "prompt"),
            (json!({"model": "m", "prompt": "a", "messages": chat}), "prompt"),
            (json!({"model": "m", "messages": chat, "add_special_tokens": true}), "add_special_tokens"),
            (json!({"model": "m", "prompt": "a", "tools": []}), "tools"),
            (json!({"model": "m", "prompt": "a", "add_generation_prompt": true}), "add_generation_prompt"),
        ] {
            assert_eq!(read(&body).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
        for (tokens, param) in [(json!(null), "tokens"), (json!(3), "tokens"), (json!([1, -1]), "tokens[1]")]
        {
            let body = json!({"model": "m", "tokens": tokens}).to_string();
            assert_eq!(parse_tokens(body.as_bytes()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
