//! Which turn answers a request.
//!
//! The first turn whose condition holds; else, of the turns without one, the turn with the number of the assistant
//! messages that the conversation has so far; else `otherwise`. All of it is in the request, so that a client may
//! repeat, branch or drop turns and any number of sessions may be open at once.

use super::file::When;
use protocol::{Error, GenerateRequest, Input, Message, Prompt, ReasoningEffort, Role};
use serde_json::Value;

/// A turn as requests see it.
#[derive(Debug)]
pub(super) struct Choice {
    pub when: Option<When>,
    pub constrained: bool,
    /// The line that says it.
    pub thinking: u32,
    /// The line that says it where the request wants no thinking.
    pub plain: u32,
}

/// The index of the turn that answers a request.
pub(super) fn choose(
    choices: &[Choice],
    otherwise: Option<usize>,
    request: &GenerateRequest,
) -> Result<usize, Error> {
    let turns = &choices[..otherwise.unwrap_or(choices.len())];
    let holds = |choice: &Choice| choice.when.as_ref().is_some_and(|when| when.holds(request));
    if let Some(index) = turns.iter().position(holds) {
        return Ok(index);
    }
    let said = turns_before(request);
    let mut plain = turns.iter().enumerate().filter(|(_, choice)| choice.when.is_none());
    if let Some((index, _)) = plain.nth(said) {
        return Ok(index);
    }
    otherwise.ok_or_else(|| {
        let numbered = turns.iter().filter(|choice| choice.when.is_none()).count();
        let message = format!(
            "the script has no turn for this request: no condition of its turns holds, {said} assistant messages \
             came before, and it has {numbered} turns without a condition"
        );
        Error::invalid("messages", message)
    })
}

/// Whether a request says that the model shall not think.
pub(super) fn is_plain(request: &GenerateRequest) -> bool {
    request.reasoning_effort == Some(ReasoningEffort::None)
        || request.template_variables.get("enable_thinking") == Some(&Value::Bool(false))
}

fn messages(request: &GenerateRequest) -> &[Message] {
    match &request.input {
        Input::Chat(messages) => messages,
        Input::Prompt(_) => &[],
    }
}

fn turns_before(request: &GenerateRequest) -> usize {
    messages(request).iter().filter(|message| message.role == Role::Assistant).count()
}

impl When {
    fn holds(&self, request: &GenerateRequest) -> bool {
        let messages = messages(request);
        let has = |message: &Message, part: &str| message.content.joined_text().contains(part);
        let user = self.user.as_ref().is_none_or(|part| match &request.input {
            Input::Chat(_) => {
                messages.iter().rfind(|message| message.role == Role::User).is_some_and(|m| has(m, part))
            }
            Input::Prompt(Prompt::Text(text)) => text.contains(part),
            Input::Prompt(Prompt::Tokens(_)) => false,
        });
        let is_system = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
        let system =
            self.system.as_ref().is_none_or(|part| messages.iter().filter(is_system).any(|m| has(m, part)));
        let last = messages.last().filter(|message| message.role == Role::Tool);
        let result = self.result.as_ref().is_none_or(|part| last.is_some_and(|m| has(m, part)));
        let tools = self.tools.is_none_or(|wanted| wanted != request.tools.is_empty());
        let turn = self.turn.is_none_or(|turn| turn == turns_before(request));
        user && system && result && tools && turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Tool;

    fn choice(when: Option<When>) -> Choice {
        Choice { when, constrained: true, thinking: 0, plain: 0 }
    }

    fn chat(messages: &[(Role, &str)]) -> GenerateRequest {
        let messages = messages.iter().map(|(role, text)| Message::text(*role, *text)).collect();
        GenerateRequest { input: Input::Chat(messages), ..GenerateRequest::default() }
    }

    fn when(user: Option<&str>, turn: Option<usize>) -> Option<When> {
        Some(When { user: user.map(str::to_owned), turn, ..When::default() })
    }

    #[test]
    fn turns_without_a_condition_are_counted_by_the_assistants_messages() {
        let choices = [choice(None), choice(when(Some("title"), None)), choice(None)];
        let at = |request: &GenerateRequest| choose(&choices, None, request);
        let mut said = vec![(Role::System, "s"), (Role::User, "hi")];
        assert_eq!(at(&chat(&said)), Ok(0));
        said.extend([(Role::Assistant, "a"), (Role::Tool, "r")]);
        assert_eq!(at(&chat(&said)), Ok(2));
        said.extend([(Role::Assistant, "b"), (Role::User, "more")]);
        let error = at(&chat(&said)).unwrap_err();
        assert!(error.message.contains("2 assistant messages"), "{error:?}");
        assert_eq!(error.param.as_deref(), Some("messages"));
        assert_eq!(at(&chat(&[(Role::User, "make a title")])), Ok(1), "a condition goes first");
    }

    #[test]
    fn all_parts_of_a_condition_must_hold() {
        let holds = |when: When, request: &GenerateRequest| when.holds(request);
        let mut request = chat(&[
            (Role::Developer, "be brief"),
            (Role::User, "first"),
            (Role::Assistant, "x"),
            (Role::User, "second"),
            (Role::Tool, "42 degrees"),
        ]);
        let text = |part: &str| Some(part.to_owned());
        assert!(holds(When { user: text("sec"), turn: Some(1), ..When::default() }, &request));
        assert!(
            !holds(When { user: text("first"), ..When::default() }, &request),
            "only the last one counts"
        );
        assert!(!holds(When { user: text("sec"), turn: Some(0), ..When::default() }, &request));
        assert!(holds(When { system: text("brief"), result: text("42"), ..When::default() }, &request));
        assert!(!holds(When { result: text("43"), ..When::default() }, &request));
        assert!(!holds(When { tools: Some(true), ..When::default() }, &request));
        request.tools =
            vec![Tool { name: "f".into(), description: None, parameters: None, strict: None, cache: None }];
        assert!(holds(When { tools: Some(true), ..When::default() }, &request));
        assert!(holds(When::default(), &request));
    }

    #[test]
    fn what_no_turn_answers_is_otherwise() {
        let choices = [choice(when(Some("a"), None)), choice(None), choice(None)];
        let request = chat(&[(Role::User, "b"), (Role::Assistant, "x"), (Role::User, "c")]);
        assert_eq!(choose(&choices, Some(2), &request), Ok(2), "otherwise is no numbered turn");
        let raw = GenerateRequest {
            input: Input::Prompt(Prompt::Text("say a".into())),
            ..GenerateRequest::default()
        };
        assert_eq!(choose(&choices, Some(2), &raw), Ok(0));
    }
}
