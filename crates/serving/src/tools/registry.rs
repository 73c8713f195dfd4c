//! The families: one entry each in [`FAMILIES`], first match first, and how each is recognised.
//!
//! A family is told from its chat template, since that is what its models were trained on; models without a
//! template, or with one that renders no tools, get the fallback prompt. To add a family, add an entry; only a
//! form that differs in kind needs code (see [`super::form`] for writing and [`super::block`] for reading).

use super::block::{Body, Opener};
use super::form::{Form, Named};
use tokenizer::Tokenizer;

/// How a family of models writes calls and thoughts.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its name.
    pub name: &'static str,
    recognise: fn(&Model<'_>) -> bool,
    /// Whether the template itself renders tools.
    tools: bool,
    /// How calls are asked for and made.
    pub(super) form: Form,
    /// What begins a call, the own form and habits.
    pub(super) openers: &'static [Opener],
    /// Whether its templates refuse several calls in one message, so that an answer has one unless more are
    /// asked for.
    pub(super) single: bool,
    /// Calls that begin without a marker.
    pub(super) bare: Bare,
    /// Whether fenced calls count.
    pub(super) fences: bool,
    /// Whether calls count whose braces stand twice, as templates of Qwen2.5-Coder show them: at both ends or at
    /// one. The call is the object inside.
    pub(super) doubled: bool,
    /// How thoughts are marked.
    pub(super) think: Option<Think>,
}

/// Which calls count that begin without a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    /// None.
    No,
    /// Objects at the start of an answer or after a call: a habit.
    Habit,
    /// Objects anywhere: the family's own form.
    Own,
    /// Lists of Python calls anywhere, the own form, and objects by habit.
    Python,
}

/// The markers of a think block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Think {
    pub open: &'static str,
    pub close: &'static str,
    /// Whether calls end the block where its end is missing.
    pub ends_at_calls: bool,
}

const THINK: Think = Think { open: "<think>", close: "</think>", ends_at_calls: false };

/// What a family is told from.
struct Model<'a> {
    template: &'a str,
    has: &'a dyn Fn(&str) -> bool,
}

impl Model<'_> {
    fn says(&self, text: &str) -> bool {
        self.template.contains(text)
    }

    /// Whether the template renders tools.
    fn tools(&self) -> bool {
        uses_variable(self.template, "tools") || uses_variable(self.template, "xml_tools")
    }

    /// Whether calls are objects in `<tool_call>`. GLM, MiniMax and Apriel have that word too, around other forms
    /// or in them.
    fn is_hermes(&self) -> bool {
        let other = ["<arg_key>", "<invoke", "<tool_calls>"].iter().any(|mark| self.says(mark));
        self.says("<tool_call>") && !other && self.tools()
    }

    fn thinks(&self) -> bool {
        self.says("<think>") || (self.has)("<think>")
    }
}

const TOOL_CALL: Opener =
    Opener { text: "<tool_call>", body: Body::Objects, close: "</tool_call>", own: true };
/// What Qwen2.5-Coder writes in place of `<tool_call>`, having read it in its prompt.
const TOOLS: Opener = Opener { text: "<tools>", body: Body::Objects, close: "</tools>", own: false };
const HERMES: Form = Form::Tagged { open: "<tool_call>", close: "</tool_call>" };
const LLAMA: Form = Form::Bare { between: "; " };

static MISTRAL_NAMED: Named = Named {
    section: "",
    open: "[TOOL_CALLS]",
    prefix: "",
    numbered: false,
    arguments: "[ARGS]",
    after: "",
    close: "",
    end: "",
    between: "",
};
/// The same from the name on: the marker is the block's opener.
static MISTRAL_READ: Named = Named { open: "", ..MISTRAL_NAMED };

static DEEPSEEK_V3: Named = Named {
    section: "<｜tool▁calls▁begin｜>",
    open: "<｜tool▁call▁begin｜>",
    prefix: "function<｜tool▁sep｜>",
    numbered: false,
    arguments: "\n```json\n",
    after: "\n```",
    close: "<｜tool▁call▁end｜>",
    end: "<｜tool▁calls▁end｜>",
    between: "\n",
};
static DEEPSEEK_V31: Named =
    Named { prefix: "", arguments: "<｜tool▁sep｜>", after: "", between: "", ..DEEPSEEK_V3 };
static KIMI: Named = Named {
    section: "<|tool_calls_section_begin|>",
    open: "<|tool_call_begin|>",
    prefix: "functions.",
    numbered: true,
    arguments: "<|tool_call_argument_begin|>",
    after: "",
    close: "<|tool_call_end|>",
    end: "<|tool_calls_section_end|>",
    between: "",
};

/// All families, the first that fits is taken; the last two fit every model.
pub(super) static FAMILIES: &[Family] = &[
    Family {
        name: "kimi",
        recognise: |model| model.says("<|tool_calls_section_begin|>") && model.tools(),
        tools: true,
        form: Form::Named(&KIMI),
        openers: &[
            Opener { text: KIMI.section, body: Body::Named(&KIMI), close: "", own: true },
            Opener { text: KIMI.open, body: Body::InNamed(&KIMI), close: "", own: true },
        ],
        single: false,
        bare: Bare::No,
        fences: false,
        doubled: false,
        think: Some(Think { ends_at_calls: true, ..THINK }),
    },
    Family {
        name: "deepseek-v3",
        recognise: |model| model.says(DEEPSEEK_V3.section) && model.says("```json") && model.tools(),
        tools: true,
        form: Form::Named(&DEEPSEEK_V3),
        openers: &[
            Opener { text: DEEPSEEK_V3.section, body: Body::Named(&DEEPSEEK_V3), close: "", own: true },
            Opener { text: DEEPSEEK_V3.open, body: Body::InNamed(&DEEPSEEK_V3), close: "", own: true },
        ],
        single: false,
        bare: Bare::No,
        fences: false,
        doubled: false,
        think: Some(THINK),
    },
    Family {
        name: "deepseek-v3.1",
        recognise: |model| model.says(DEEPSEEK_V3.section) && model.tools(),
        tools: true,
        form: Form::Named(&DEEPSEEK_V31),
        openers: &[
            Opener { text: DEEPSEEK_V31.section, body: Body::Named(&DEEPSEEK_V31), close: "", own: true },
            Opener { text: DEEPSEEK_V31.open, body: Body::InNamed(&DEEPSEEK_V31), close: "", own: true },
        ],
        single: false,
        bare: Bare::No,
        fences: false,
        doubled: false,
        think: Some(THINK),
    },
    Family {
        name: "qwen3-coder",
        // Others have the same tags in markers of their own.
        recognise: |model| {
            model.says("<tool_call>")
                && model.says("<function=")
                && model.says("<parameter=")
                && model.tools()
        },
        tools: true,
        form: Form::Parameters,
        openers: &[
            Opener { body: Body::Parameters, ..TOOL_CALL },
            Opener { text: "<function=", body: Body::Parameters, close: "", own: true },
        ],
        single: false,
        bare: Bare::No,
        fences: false,
        doubled: false,
        think: Some(THINK),
    },
    Family {
        name: "hermes-thinking",
        recognise: |model| model.is_hermes() && model.thinks(),
        tools: true,
        form: HERMES,
        openers: &[TOOL_CALL, TOOLS],
        single: false,
        bare: Bare::Habit,
        fences: true,
        doubled: true,
        think: Some(THINK),
    },
    Family {
        name: "hermes",
        recognise: |model| model.is_hermes(),
        tools: true,
        form: HERMES,
        openers: &[TOOL_CALL, TOOLS],
        single: false,
        bare: Bare::Habit,
        fences: true,
        doubled: true,
        think: None,
    },
    Family {
        name: "llama-4",
        recognise: |model| {
            (model.says("<|python_start|>") || (model.says("<|header_start|>") && model.says("[func_name1(")))
                && model.tools()
        },
        tools: true,
        form: Form::Pythonic { open: None, close: None },
        openers: &[Opener {
            text: "<|python_start|>",
            body: Body::Python,
            close: "<|python_end|>",
            own: true,
        }],
        single: false,
        bare: Bare::Python,
        fences: true,
        doubled: false,
        think: None,
    },
    Family {
        name: "pythonic",
        recognise: |model| model.says("[func_name1(") && model.tools(),
        tools: true,
        form: Form::Pythonic { open: None, close: None },
        openers: &[],
        single: false,
        bare: Bare::Python,
        fences: true,
        doubled: false,
        think: None,
    },
    Family {
        name: "llama-3",
        recognise: |model| {
            (model.says("<|python_tag|>") || model.says("<|start_header_id|>"))
                && (model.says("\"parameters\":") || model.says("\\\"parameters\\\":"))
                && model.tools()
        },
        tools: true,
        form: LLAMA,
        openers: &[Opener { text: "<|python_tag|>", body: Body::Objects, close: "", own: true }],
        single: true,
        bare: Bare::Own,
        fences: true,
        doubled: false,
        think: None,
    },
    Family {
        name: "mistral-named",
        recognise: |model| model.says("[TOOL_CALLS]") && model.says("[ARGS]") && model.tools(),
        tools: true,
        form: Form::Named(&MISTRAL_NAMED),
        openers: &[Opener { text: "[TOOL_CALLS]", body: Body::Named(&MISTRAL_READ), close: "", own: true }],
        single: false,
        bare: Bare::No,
        fences: false,
        doubled: false,
        think: Some(Think { open: "[THINK]", close: "[/THINK]", ends_at_calls: false }),
    },
    // The tokenizer of Nemo and after puts no space behind control tokens.
    Family {
        name: "mistral-nemo",
        recognise: |model| model.says("[TOOL_CALLS][") && model.tools(),
        tools: true,
        form: Form::List { open: "[TOOL_CALLS]", bracket: "[" },
        openers: &[Opener { text: "[TOOL_CALLS]", body: Body::Named(&MISTRAL_READ), close: "", own: true }],
        single: false,
        bare: Bare::No,
        fences: true,
        doubled: false,
        think: None,
    },
    Family {
        name: "mistral",
        recognise: |model| model.says("[TOOL_CALLS]") && model.tools(),
        tools: true,
        form: Form::List { open: "[TOOL_CALLS]", bracket: " [" },
        openers: &[Opener { text: "[TOOL_CALLS]", body: Body::Named(&MISTRAL_READ), close: "", own: true }],
        single: false,
        bare: Bare::No,
        fences: true,
        doubled: false,
        think: None,
    },
    // No template of Gemma's renders tools; its makers ask for calls in the prompt, as an object alone.
    Family {
        name: "gemma",
        recognise: |model| model.says("<start_of_turn>"),
        tools: false,
        form: Form::Bare { between: "\n" },
        openers: &[],
        single: false,
        bare: Bare::Own,
        fences: true,
        doubled: false,
        think: None,
    },
    Family {
        name: "plain-thinking",
        recognise: |model| model.thinks(),
        tools: false,
        form: HERMES,
        openers: &[TOOL_CALL, TOOLS],
        single: false,
        bare: Bare::Habit,
        fences: true,
        doubled: false,
        think: Some(THINK),
    },
    Family {
        name: "plain",
        recognise: |_| true,
        tools: false,
        form: HERMES,
        openers: &[TOOL_CALL, TOOLS],
        single: false,
        bare: Bare::Habit,
        fences: true,
        doubled: false,
        think: None,
    },
];

/// The family of a model, told from its chat template and its vocabulary.
pub(crate) fn family(template: Option<&str>, tokenizer: &Tokenizer) -> &'static Family {
    let family = recognised(template.unwrap_or_default(), &|text| tokenizer.token_id(text).is_some());
    tracing::debug!(family = family.name, "answers are read in this family's form");
    family
}

pub(super) fn recognised(template: &str, has: &dyn Fn(&str) -> bool) -> &'static Family {
    let model = Model { template, has };
    let last = &FAMILIES[FAMILIES.len() - 1];
    FAMILIES.iter().find(|family| (family.recognise)(&model)).unwrap_or(last)
}

impl Family {
    /// What begins and ends a think block.
    pub fn think_marks(&self) -> Option<(&'static str, &'static str)> {
        self.think.map(|think| (think.open, think.close))
    }

    /// Texts that must be shown to the parser although they are control tokens.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers: Vec<&'static str> = Vec::new();
        for opener in self.openers {
            markers.extend([opener.text, opener.close]);
            if let Body::Named(named) | Body::InNamed(named) = opener.body {
                let sep = named.prefix.find('<').map_or("", |at| &named.prefix[at..]);
                markers.extend([named.open, named.close, named.end, named.arguments, sep, "[CALL_ID]"]);
            }
        }
        markers.extend(self.think.iter().flat_map(|think| [think.open, think.close]));
        markers.retain(|text| text.starts_with(['<', '[']));
        markers.sort_unstable();
        markers.dedup();
        markers
    }

    /// Whether the template itself renders tools; otherwise the texts of [`super::prompt`] go into the prompt.
    pub fn knows_tools(&self) -> bool {
        self.tools
    }

    /// Whether its calls can say this name of a tool.
    pub fn can_call(&self, name: &str) -> bool {
        self.form.carries(name)
    }

    /// Whether its templates take one call a message.
    pub fn calls_one_by_one(&self) -> bool {
        self.single
    }

    /// The id that a call must have where its templates write ids in place of names, as the model writes them; this call
    /// is the one of that number. An id that is so already stays.
    pub fn call_id(&self, name: &str, id: &str, number: usize) -> Option<String> {
        let Form::Named(Named { numbered: true, prefix, .. }) = self.form else { return None };
        let own = id.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(name)?.strip_prefix(':'));
        let kept = own.is_some_and(|n| (1..5).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()));
        Some(if kept { id.to_owned() } else { format!("{prefix}{name}:{number}") })
    }

    /// Whether an answer to this prompt begins with a think block. `tail` is the end of the rendered prompt.
    pub fn thinking(&self, tail: &str) -> super::Thinking {
        let Some(think) = self.think else { return super::Thinking::No };
        let tail = tail.trim_end();
        if tail.ends_with(think.open) {
            super::Thinking::Open
        } else if tail.ends_with(think.close) {
            super::Thinking::No
        } else {
            super::Thinking::May
        }
    }

    /// A parser for one answer.
    pub fn parser(&'static self, ask: &super::Ask<'_>) -> super::AnswerParser {
        super::AnswerParser::new(self, ask)
    }
}

/// Whether a template's code, not its text, names a variable.
fn uses_variable(template: &str, name: &str) -> bool {
    let mut rest = template;
    while let Some(at) = rest.find("{%").into_iter().chain(rest.find("{{")).min() {
        let (tag, after) = code(&rest[at + 2..], name);
        if tag {
            return true;
        }
        rest = after;
    }
    false
}

/// Reads one tag of a template: whether it names the variable, and what comes after it.
fn code<'a>(tag: &'a str, name: &str) -> (bool, &'a str) {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = tag.as_bytes();
    let (mut i, mut before) = (0, b' ');
    while i < bytes.len() {
        let byte = bytes[i];
        match byte {
            b'%' | b'}' if bytes.get(i + 1) == Some(&b'}') => return (false, &tag[i + 2..]),
            b'"' | b'\'' => {
                i += 1;
                while i < bytes.len() && bytes[i] != byte {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
            }
            _ if is_word(byte) => {
                let end = bytes[i..].iter().position(|b| !is_word(*b)).map_or(bytes.len(), |n| i + n);
                if &tag[i..end] == name && before != b'.' {
                    return (true, "");
                }
                i = end - 1;
            }
            _ => {}
        }
        before = byte;
        i += 1;
    }
    (false, "")
}
