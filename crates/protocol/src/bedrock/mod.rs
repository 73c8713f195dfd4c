//! Amazon Bedrock's Converse: asking for an answer and reading it.
//!
//! Source: `Converse` and `ConverseStream` in the Bedrock Runtime API Reference, and `litellm/llms/bedrock/chat/` of LiteLLM
//! 1.106.12. Not here: a server that speaks it, and the framing of its streams (`gateway::eventstream`).

pub mod upstream;
