//! `hearth chat`: a conversation in the terminal, or one question.
//!
//! Talks to a server when one answers, else loads a model in this process. Ctrl-C stops an answer, Ctrl-D ends.

mod remote;
mod talker;

use super::style::{self, Style};
use super::{Session, runtime};
use crate::catalog::DEFAULT_MODEL;
use crate::config::{ApiKey, Count, Layer, ModelArg, Quantize, Threads};
use anyhow::{Context, bail};
use protocol::{Message, Role};
use rustyline::error::ReadlineError;
use std::io::{self, Read, Write};
use talker::{Answer, Kind, Params, Talker};
use tokio::runtime::Runtime;

/// The server that is tried when none is named.
const DEFAULT_URL: &str = "http://127.0.0.1:8790";

/// Arguments of `hearth chat`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --url and --model it talks to the server on 127.0.0.1:8790, and when none answers there,
loads smollm2-135m-instruct in this process.

Examples:
  hearth chat
  hearth chat -p \"Name three rivers.\"
  git diff | hearth chat --system \"Write a commit message for this change.\" -p -
  hearth chat --model ./qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
)]
pub(super) struct Args {
    /// Ask this and end; - reads the question from standard input
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,

    /// Load this model in this process; with --url, the server's model to talk to
    #[arg(long, short, value_name = "[NAME=]ID_OR_PATH")]
    model: Option<ModelArg>,

    /// Server to talk to
    #[arg(long, value_name = "URL", env = "HEARTH_URL", hide_env_values = true)]
    url: Option<String>,

    /// The server's key
    #[arg(long, value_name = "KEY", env = "HEARTH_API_KEY", hide_env_values = true)]
    api_key: Option<ApiKey>,

    /// What the model is told before the conversation
    #[arg(long, short, value_name = "TEXT")]
    system: Option<String>,

    /// 0 always takes the likeliest token; higher is more varied [default: the model's own]
    #[arg(long, short, value_name = "0..2")]
    temperature: Option<f32>,

    /// Longest answer in tokens [default: as many as fit]
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<Count>,

    /// The same seed gives the same answer
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Threads that compute, when the model is loaded in this process
    #[arg(long, value_name = "N", env = "HEARTH_THREADS", hide_env_values = true)]
    threads: Option<Threads>,

    /// Longest conversation in tokens, when the model is loaded in this process
    #[arg(long, value_name = "TOKENS", env = "HEARTH_CONTEXT", hide_env_values = true)]
    context: Option<Count>,

    /// Quantise F32, F16 and BF16 weights while loading in this process
    #[arg(long, value_name = "FORMAT", env = "HEARTH_QUANTIZE", hide_env_values = true)]
    quantize: Option<Quantize>,

    /// Do not show speed and cached tokens after each answer
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `hearth chat`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let params = Params {
        temperature: args.temperature,
        max_tokens: args.max_tokens.map(Count::get),
        seed: args.seed,
    };
    if params.temperature.is_some_and(|t| !(0.0..=2.0).contains(&t)) {
        bail!("--temperature must be from 0 to 2");
    }
    // Read before anything is loaded: a missing question should not cost a minute.
    let question = args.prompt.clone().map(question).transpose()?;
    let runtime = runtime()?;
    let talker = runtime.block_on(find_talker(session, &args))?;
    let mut conversation = Conversation {
        talker,
        params,
        system: args.system,
        messages: Vec::new(),
        quiet: args.quiet,
        runtime: &runtime,
    };
    conversation.clear();
    let result = match question {
        Some(question) => conversation.ask(&question, Break::EndsTheProgram),
        None => converse(&mut conversation),
    };
    runtime.block_on(conversation.talker.close());
    result
}

fn question(mut text: String) -> anyhow::Result<String> {
    if text == "-" {
        text.clear();
        io::stdin().read_to_string(&mut text).context("reading the question from standard input")?;
    }
    if text.trim().is_empty() {
        bail!("the question is empty");
    }
    Ok(text)
}

async fn find_talker(session: &Session, args: &Args) -> anyhow::Result<Talker> {
    let key = args.api_key.as_ref().map(ApiKey::secret);
    if let Some(url) = &args.url {
        let model = match args.model.as_ref().map(|model| (model.name.as_ref(), model.target.default_name()))
        {
            Some((Some(_), _)) => bail!("with --url, --model is an id of the server and takes no NAME="),
            Some((None, id)) => id,
            None => None,
        };
        return remote::connect(url, key, model).await.map(Talker::Remote);
    }
    if args.model.is_none() {
        match remote::connect(DEFAULT_URL, key, None).await {
            Ok(remote) => return Ok(Talker::Remote(remote)),
            Err(error) if remote::is_absent(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let model = match &args.model {
        Some(model) => model.clone(),
        None => DEFAULT_MODEL.parse().map_err(anyhow::Error::msg)?,
    };
    let wishes = Layer {
        models: Some(vec![model]),
        threads: args.threads,
        context: args.context,
        quantize: args.quantize,
        // The server's rules about addresses and keys are none of this command's.
        listen: Some(crate::config::Listen::default()),
        ..Layer::default()
    };
    let (settings, _) = session.settings(wishes)?;
    let catalog = session.catalog()?;
    talker::load(&settings, &catalog).await
}

/// What Ctrl-C does during an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Break {
    /// Stops the answer; the conversation goes on.
    StopsTheAnswer,
    /// Stops the answer and the program.
    EndsTheProgram,
}

struct Conversation<'a> {
    talker: Talker,
    params: Params,
    system: Option<String>,
    messages: Vec<Message>,
    quiet: bool,
    runtime: &'a Runtime,
}

impl Conversation<'_> {
    fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| Message::text(Role::System, text.as_str())).collect();
    }

    /// Asks, prints the answer as it comes, and remembers both.
    fn ask(&mut self, question: &str, on_break: Break) -> anyhow::Result<()> {
        self.messages.push(Message::text(Role::User, question));
        let mut said = Said::new(io::stdout());
        let answered = self.runtime.block_on(async {
            let mut print = |kind: Kind, piece: &str| said.say(kind, piece);
            tokio::select! {
                answer = self.talker.answer(&self.messages, &self.params, &mut print) => answer.map(Some),
                // Dropping the answer's future closes its stream, and that cancels the work.
                result = tokio::signal::ctrl_c() => result.map(|()| None).map_err(Into::into),
            }
        });
        let answer = match answered {
            Ok(answer) => answer,
            Err(error) => {
                // The question goes, so that the next one follows what was answered.
                self.messages.pop();
                if said.last.is_some() {
                    writeln!(io::stdout())?;
                }
                return Err(error);
            }
        };
        self.messages.push(said.message());
        writeln!(io::stdout())?;
        match answer {
            Some(answer) if !self.quiet => style::say(&Style::for_stderr().dim(summary(&answer))),
            Some(_) => {}
            None if on_break == Break::EndsTheProgram => bail!("stopped"),
            None => style::say(&Style::for_stderr().dim("stopped")),
        }
        Ok(())
    }
}

/// Prints an answer as it comes, thought and answer with an empty line between, and remembers it.
struct Said<W> {
    out: W,
    thought: String,
    text: String,
    /// What was printed last.
    last: Option<Kind>,
}

impl<W: Write> Said<W> {
    const fn new(out: W) -> Self {
        Self { out, thought: String::new(), text: String::new(), last: None }
    }

    fn say(&mut self, kind: Kind, piece: &str) -> io::Result<()> {
        if let Some(last) = self.last.replace(kind).filter(|last| *last != kind) {
            let before = if last == Kind::Thought { &self.thought } else { &self.text };
            let ended = before.chars().rev().take_while(|character| *character == '\n').count();
            self.out.write_all(&b"\n\n"[ended.min(2)..])?;
        }
        match kind {
            Kind::Thought => self.thought.push_str(piece),
            Kind::Text => self.text.push_str(piece),
        }
        self.out.write_all(piece.as_bytes())?;
        self.out.flush()
    }

    /// The answer as the conversation goes on with it: what was thought is no part of what was said.
    fn message(self) -> Message {
        let reasoning = Some(self.thought).filter(|thought| !thought.is_empty());
        Message { reasoning, ..Message::text(Role::Assistant, self.text) }
    }
}

/// Speed and cache of an answer, in a line.
fn summary(answer: &Answer) -> String {
    let usage = &answer.usage;
    let speed = match answer.tokens_per_second() {
        Some(speed) => format!(" {speed:.1} tokens/s,"),
        None if usage.completion_tokens <= 1 => " one step,".into(),
        // All at once, as a script answers.
        None => String::new(),
    };
    let cut = if answer.cut { ", cut at the length limit" } else { "" };
    format!(
        "{} tokens,{speed} first after {:.2} s; prompt {} tokens, {} cached{cut}",
        usage.completion_tokens,
        answer.first.as_secs_f64(),
        usage.prompt_tokens,
        usage.cached_tokens,
    )
}

const HELP: &str =
    "/clear begins a new conversation, /system TEXT sets what the model is told first, /quit ends.
A line that ends with \\ goes on in the next. Ctrl-C stops an answer, Ctrl-D ends.";

fn converse(conversation: &mut Conversation<'_>) -> anyhow::Result<()> {
    let style = Style::for_stderr();
    style::say(&format!(
        "{} {}",
        style.bold(conversation.talker.model()),
        style.dim(conversation.talker.place())
    ));
    style::say(&style.dim("/help tells what you can type; Ctrl-D ends"));
    let mut editor = rustyline::DefaultEditor::new().context("this terminal cannot be used")?;
    while let Some(line) = read(&mut editor)? {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "" => {}
            "/help" => style::say(HELP),
            "/quit" | "/exit" => break,
            "/clear" => conversation.clear(),
            "/system" => {
                conversation.system = Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
                conversation.clear();
            }
            _ if word.starts_with('/') && !word[1..].contains('/') => {
                style::say(&format!("there is no {word}; /help tells which there are"));
            }
            _ => {
                if let Err(error) = conversation.ask(&line, Break::StopsTheAnswer) {
                    // The terminal's end is the conversation's; all else can be said and lived with.
                    if super::is_broken_pipe(&error) {
                        return Err(error);
                    }
                    style::error(&error);
                }
            }
        }
    }
    Ok(())
}

/// The next input; `None` at the end. Ctrl-C empties the line.
fn read(editor: &mut rustyline::DefaultEditor) -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() { "> " } else { ". " };
        match editor.readline(prompt) {
            Ok(line) => {
                let (part, more) = match line.strip_suffix('\\') {
                    Some(part) => (part, true),
                    None => (line.as_str(), false),
                };
                text.push_str(part);
                if more {
                    text.push('\n');
                    continue;
                }
                if !text.trim().is_empty() {
                    // A line that cannot be remembered is only not offered again.
                    let _ = editor.add_history_entry(&text);
                }
                return Ok(Some(text.trim().to_owned()));
            }
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Usage;
    use std::time::Duration;

    #[test]
    fn thought_and_answer_stand_apart_by_an_empty_line() {
        for (thought, text, shown) in [
            (vec!["I ask ", "the tool."], "Let me look.", "I ask the tool.\n\nLet me look."),
            (vec!["Hm.\n"], "Four.", "Hm.\n\nFour."),
            (vec!["Hm.\n\n"], "Four.", "Hm.\n\nFour."),
            (vec![], "Four.", "Four."),
        ] {
            let mut said = Said::new(Vec::new());
            for piece in &thought {
                said.say(Kind::Thought, piece).unwrap();
            }
            said.say(Kind::Text, text).unwrap();
            assert_eq!(String::from_utf8(said.out.clone()).unwrap(), shown);
            let message = said.message();
            assert_eq!(message.content.joined_text(), text);
            assert_eq!(message.reasoning.unwrap_or_default(), thought.concat());
        }
    }

    #[test]
    fn the_summary_tells_speed_and_cached_tokens() {
        let usage = Usage { prompt_tokens: 30, cached_tokens: 20, completion_tokens: 11, ..Usage::default() };
        let answer = Answer {
            usage,
            first: Duration::from_millis(500),
            total: Duration::from_millis(1500),
            cut: false,
        };
        assert_eq!(
            summary(&answer),
            "11 tokens, 10.0 tokens/s, first after 0.50 s; prompt 30 tokens, 20 cached"
        );
        // An answer that comes at once has no speed worth telling.
        let instant = Answer { total: Duration::from_micros(500_900), ..answer };
        assert_eq!(summary(&instant), "11 tokens, first after 0.50 s; prompt 30 tokens, 20 cached");
        let cut = Answer { usage: Usage { completion_tokens: 1, ..usage }, cut: true, ..answer };
        assert!(
            summary(&cut).ends_with(
                "one step, first after 0.50 s; prompt 30 tokens, 20 cached, cut at the length limit"
            ) || summary(&cut).contains("cut at the length limit")
        );
    }
}
