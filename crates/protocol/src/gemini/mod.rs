//! Gemini's dialect, as Google AI Studio and Vertex AI have it: asking for an answer, reading it, and errors.
//!
//! Source: `google-genai` 3.6.1 (`types.py`), whose names are those of the API, and `litellm/llms/vertex_ai/gemini/` of
//! LiteLLM 1.106.12 for what the API makes of them. Not here: a server that speaks it.

pub mod error;
pub mod upstream;
