//! `hearth tokenize`: text as the tokens a model sees, and back.

use super::locate::locate;
use super::style::{self, Style};
use super::{Session, runtime};
use crate::config::ModelArg;
use anyhow::{Context, bail};
use serde::Serialize;
use std::io::{self, Read, Write};
use tokenizer::{Piece, Specials, Tokenizer};

/// Arguments of `hearth tokenize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  hearth tokenize --model smollm2-135m-instruct \"Hello there\"
  hearth tokenize --model ./model.gguf - < prompt.txt
  hearth tokenize --model smollm2-135m-instruct --decode 19556 665")]
pub(super) struct Args {
    /// Model whose tokenizer to use: an id of the catalog, a .gguf file or a Hugging Face folder
    #[arg(long, short, value_name = "ID_OR_PATH", env = "HEARTH_MODEL", hide_env_values = true)]
    model: ModelArg,

    /// The text, or - for standard input; with --decode, token ids
    #[arg(value_name = "TEXT", default_value = "-", allow_hyphen_values = true)]
    text: Vec<String>,

    /// Take names of control tokens in the text as such, and add those that a raw prompt begins and ends with
    #[arg(long)]
    special: bool,

    /// Turn token ids into text
    #[arg(long)]
    decode: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Token {
    id: u32,
    /// Bytes that are no whole character show as U+FFFD.
    piece: String,
    bytes: Vec<u8>,
    control: bool,
}

/// Runs `hearth tokenize`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let located = runtime()?.block_on(locate(&args.model, &session.catalog()?, &session.data_dir()?))?;
    let open = if located.script { serving::open_script_tokenizer } else { serving::open_tokenizer };
    let tokenizer = open(&located.path)
        .with_context(|| format!("cannot read the tokenizer of {}", located.path.display()))?;
    let text = match args.text.as_slice() {
        [dash] if dash == "-" => {
            let mut text = Vec::new();
            io::stdin().read_to_end(&mut text)?;
            String::from_utf8(text).context("standard input is not UTF-8")?
        }
        words => words.join(" "),
    };
    if args.decode { decode(&tokenizer, &text, args.json) } else { encode(&tokenizer, &text, &args) }
}

fn encode(tokenizer: &Tokenizer, text: &str, args: &Args) -> anyhow::Result<()> {
    let ids = if args.special {
        let ids = tokenizer.encode(&[Piece::Trusted(text)], None).expect("no limit was given");
        tokenizer.add_special(ids)
    } else {
        tokenizer.encode_ordinary(text)
    };
    let tokens: Vec<Token> = ids.iter().map(|&id| describe(tokenizer, id)).collect();
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&tokens)?)?;
        return Ok(());
    }
    for token in &tokens {
        writeln!(out, "{:>8}  {}", token.id, show(token))?;
    }
    out.flush()?;
    let count = base::Tokens::from(tokens.len());
    style::say(&Style::for_stderr().dim(format!("{count}, {} characters", text.chars().count())));
    Ok(())
}

fn describe(tokenizer: &Tokenizer, id: u32) -> Token {
    let bytes = tokenizer.token_bytes(id).to_vec();
    Token {
        id,
        piece: String::from_utf8_lossy(&bytes).into_owned(),
        bytes,
        control: tokenizer.is_control(id),
    }
}

/// A piece in quotes, so that spaces and line ends show; incomplete characters as their bytes.
fn show(token: &Token) -> String {
    let text = match std::str::from_utf8(&token.bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("bytes {:02x?}", token.bytes),
    };
    if token.control { format!("{text} (control)") } else { text }
}

fn decode(tokenizer: &Tokenizer, text: &str, json: bool) -> anyhow::Result<()> {
    let mut ids = Vec::new();
    for word in text.split(|c: char| c.is_whitespace() || ",[]".contains(c)).filter(|word| !word.is_empty()) {
        let id: u32 = word.parse().with_context(|| format!("{word:?} is not a token id"))?;
        if id >= tokenizer.vocab_size() {
            bail!("there is no token {id}; the vocabulary has {}", tokenizer.vocab_size());
        }
        ids.push(id);
    }
    let text = tokenizer.decode(&ids, Specials::Show);
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&text)?)?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_character_shows_as_bytes_and_a_space_shows_as_such() {
        let token =
            |bytes: &[u8], control| Token { id: 1, piece: String::new(), bytes: bytes.to_vec(), control };
        assert_eq!(show(&token(b" a\n", false)), r#"" a\n""#);
        assert_eq!(show(&token(&[0xf0, 0x9f], false)), "bytes [f0, 9f]");
        assert_eq!(show(&token(b"<|im_end|>", true)), "\"<|im_end|>\" (control)");
    }
}
