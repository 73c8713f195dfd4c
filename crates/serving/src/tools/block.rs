//! Reads one block of calls, from its opener on, while its text is still coming.
//!
//! A block is read byte by byte with memory of where it stopped, so what it gives and where it fails depend on
//! the text alone, and time is linear. A block that can be trusted (`live`) gives arguments as they come; any
//! other gives calls once they are whole and known to be good.

use super::declared::Declared;
use super::form::Named;
use super::json::{Call, JsonScan, Quoted, Scan, arguments, quoted, read_call};
use super::parameters::ParameterScan;
use super::pythonic::{PythonScan, list, statement};

/// A text that opens a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opener {
    /// The text.
    pub text: &'static str,
    /// What follows.
    pub body: Body,
    /// What ends the block; empty where nothing does.
    pub close: &'static str,
    /// Whether the family's own form begins so; otherwise it is a habit.
    pub own: bool,
}

/// What a block holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// Objects, or an array of them.
    Objects,
    /// Calls in this form, from the first call's opener on.
    Named(&'static Named),
    /// The same, from the first call's name on.
    InNamed(&'static Named),
    /// A list of Python calls.
    Python,
    /// Lines of Python up to the closing fence.
    Code,
    /// `<function=..>` with parameters.
    Parameters,
}

/// What a block gives.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Start(String),
    Arguments(String),
    End,
}

/// How far reading came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More text is needed.
    More,
    /// The block ends at [`Block::at`].
    Done,
    /// It is none, seen at [`Block::at`]. What was given out stands; the rest, from [`Block::given`], is text.
    Failed(String),
    /// The text ended inside arguments that were being given out.
    Cut,
}

enum Turn {
    Next,
    More,
    Done,
    Bad(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Object,
    Arguments,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    Value,
    Object { start: usize, scan: JsonScan, plain: bool },
    Live { sent: usize, scan: JsonScan, after: After },
    Rest(JsonScan),
    AfterValue,
    Close { surplus: u8 },
    CallOpen,
    Name,
    Arguments,
    Held { start: usize, scan: JsonScan },
    AfterArguments,
    Python { start: usize, scan: PythonScan },
    Code { start: usize, scan: PythonScan, inside: bool },
    Parameters(ParameterScan),
}

/// A block being read. Offsets are from its opener.
#[derive(Clone, Debug)]
pub(super) struct Block {
    opener: Opener,
    live: bool,
    /// Whether the braces around a call may stand twice.
    doubled: bool,
    state: State,
    at: usize,
    given: usize,
    list: bool,
    found: Vec<Call>,
    /// Calls that were given out whole.
    calls: u32,
    name: String,
    /// Whether nothing after the first whole call is read.
    single: bool,
    /// What is wrong with a call that was read to its end; the block fails where it ends.
    fault: Option<String>,
    /// Whether it failed because there was no more text.
    cut: bool,
}

impl Block {
    /// A block whose opener, of `skip` bytes as written, has been seen.
    pub fn new(opener: Opener, skip: usize, live: bool, doubled: bool, single: bool) -> Self {
        let state = if matches!(opener.body, Body::InNamed(_)) { State::Name } else { State::Open };
        Self {
            opener,
            live,
            doubled,
            state,
            at: skip,
            given: 0,
            list: false,
            found: Vec::new(),
            calls: 0,
            name: String::new(),
            single,
            fault: None,
            cut: false,
        }
    }

    /// Bytes read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes before which everything was given out.
    pub fn given(&self) -> usize {
        self.given
    }

    /// Whether it is of the family's own form, or was read as calls to its end.
    pub fn is_meant(&self) -> bool {
        self.opener.own || self.fault.is_some()
    }

    /// Whether it failed because there was no more text.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Goes on. `text` is all there is from the opener on.
    pub fn read(&mut self, text: &str, tools: &Declared, out: &mut Vec<Event>) -> Step {
        loop {
            match self.turn(text, tools, out) {
                Turn::Next => {}
                Turn::More => return Step::More,
                Turn::Done => return self.done(out),
                // What comes after a call that was given out is no fault of the call.
                Turn::Bad(_)
                    if self.calls > 0
                        && self.found.is_empty()
                        && self.fault.is_none()
                        && self.is_between() =>
                {
                    return Step::Done;
                }
                Turn::Bad(why) => return Step::Failed(why),
            }
        }
    }

    /// There is no more text.
    pub fn end(&mut self, text: &str, out: &mut Vec<Event>) -> Step {
        let whole = !self.found.is_empty() || self.calls > 0 || self.fault.is_some();
        let complete = match self.state {
            State::Rest(_) | State::Close { .. } | State::AfterArguments => true,
            State::AfterValue => !self.list || self.opener.own,
            State::CallOpen | State::Code { inside: false, .. } => true,
            State::Live { .. } => return Step::Cut,
            _ => false,
        };
        if whole && complete {
            let step = self.done(out);
            self.at = text.len();
            step
        } else {
            self.at = text.len();
            self.cut = true;
            Step::Failed("the answer ends inside a call".into())
        }
    }

    fn done(&mut self, out: &mut Vec<Event>) -> Step {
        if let Some(why) = &self.fault {
            return Step::Failed(why.clone());
        }
        self.give(out);
        Step::Done
    }

    /// Whether the only call of the answer was read, and is good.
    fn is_enough(&self) -> bool {
        self.single && self.fault.is_none() && (self.calls > 0 || !self.found.is_empty())
    }

    fn is_between(&self) -> bool {
        matches!(self.state, State::Close { .. } | State::CallOpen | State::AfterArguments | State::Rest(_))
    }

    fn give(&mut self, out: &mut Vec<Event>) {
        if self.single {
            self.found.truncate(usize::from(self.calls == 0));
        }
        for call in self.found.drain(..) {
            out.extend([Event::Start(call.name), Event::Arguments(call.arguments), Event::End]);
            self.calls += 1;
        }
        self.given = self.at;
    }

    /// Adds calls, if each is of a declared tool. Arguments that break a strict tool's schema are a fault of the whole
    /// block, which is read to its end, so that it comes back in one piece. A grammar has seen to those of a live one.
    fn found(&mut self, calls: Vec<Call>, tools: &Declared) -> Result<(), String> {
        if let Some(call) = calls.iter().find(|call| !tools.has(&call.name)) {
            return Err(unknown(&call.name));
        }
        // Calls after the only one are not read.
        let read = if self.single { 1 } else { calls.len() };
        if !self.live && self.fault.is_none() {
            let mut checked = calls.iter().take(read).map(|call| tools.obeyed(&call.name, &call.arguments));
            self.fault = checked.find_map(Result::err);
        }
        self.found.extend(calls);
        Ok(())
    }

    fn space(&mut self, text: &str) {
        self.at = after_space(text, self.at);
    }

    fn turn(&mut self, text: &str, tools: &Declared, out: &mut Vec<Event>) -> Turn {
        match &mut self.state {
            State::Open => self.open(text),
            State::Value => self.value(text),
            State::Object { .. } => self.object(text, tools, out),
            State::Live { .. } => self.stream(text, out),
            State::Rest(scan) => match scan.run(text, self.at) {
                Scan::More => {
                    self.at = text.len();
                    Turn::More
                }
                Scan::End(end) => {
                    self.at = end;
                    self.given = end;
                    self.state = State::AfterValue;
                    Turn::Next
                }
                Scan::Bad(at) => {
                    self.at = at;
                    Turn::Bad("the call is no JSON".into())
                }
            },
            State::AfterValue => self.after_value(text),
            State::Close { .. } => self.close(text),
            State::CallOpen => self.call_open(text),
            State::Name => self.named(text, tools),
            State::Arguments => self.begin_arguments(text, tools, out),
            State::Held { start, scan } => match scan.run(text, self.at) {
                Scan::More => {
                    self.at = text.len();
                    Turn::More
                }
                Scan::End(end) => {
                    let made = arguments(&text[*start..end]);
                    self.at = end;
                    match made {
                        Ok(arguments) => self.found_named(arguments, tools),
                        Err(why) => Turn::Bad(why),
                    }
                }
                Scan::Bad(at) => {
                    self.at = at;
                    Turn::Bad("the arguments are no JSON".into())
                }
            },
            State::AfterArguments => self.after_arguments(text, out),
            State::Python { start, scan } => match scan.run(text, self.at) {
                Scan::More => {
                    self.at = text.len();
                    Turn::More
                }
                Scan::End(end) => {
                    let calls = list(&text[*start..end], tools);
                    self.at = end;
                    match calls {
                        Ok(calls) if calls.is_empty() => Turn::Bad("there is no call in the list".into()),
                        Ok(calls) => match self.found(calls, tools) {
                            Ok(()) => {
                                self.state = State::Close { surplus: 0 };
                                Turn::Next
                            }
                            Err(why) => Turn::Bad(why),
                        },
                        Err(why) => Turn::Bad(why),
                    }
                }
                Scan::Bad(at) => {
                    self.at = at;
                    Turn::Bad("the call is no Python".into())
                }
            },
            State::Code { .. } => self.code(text, tools),
            State::Parameters(scan) => {
                let read = scan.run(text, &mut self.at, tools);
                match read {
                    Ok(None) => Turn::More,
                    Ok(Some(call)) => match self.found(vec![call], tools) {
                        Ok(()) => {
                            self.state = State::Close { surplus: 0 };
                            Turn::Next
                        }
                        Err(why) => Turn::Bad(why),
                    },
                    Err(why) => Turn::Bad(why),
                }
            }
        }
    }

    fn open(&mut self, text: &str) -> Turn {
        self.space(text);
        let rest = &text[self.at..];
        let Some(first) = rest.chars().next() else { return Turn::More };
        let objects = matches!(first, '{' | '[');
        self.state = match self.opener.body {
            Body::Python => State::Python { start: self.at, scan: PythonScan::default() },
            Body::Code => State::Code { start: self.at, scan: PythonScan::default(), inside: false },
            Body::Named(named) if !named.open.is_empty() => State::CallOpen,
            Body::Named(_) | Body::InNamed(_) if !objects => State::Name,
            Body::Objects | Body::Parameters if !objects => match starts(rest, "<function=") {
                Seen::Part => return Turn::More,
                Seen::Yes => State::Parameters(ParameterScan::default()),
                Seen::No => return Turn::Bad("there is no call after the marker".into()),
            },
            Body::Objects | Body::Parameters | Body::Named(_) | Body::InNamed(_) => State::Value,
        };
        Turn::Next
    }

    fn value(&mut self, text: &str) -> Turn {
        self.space(text);
        match text[self.at..].bytes().next() {
            None => Turn::More,
            Some(b'[') if !self.list && self.found.is_empty() && self.calls == 0 => {
                self.list = true;
                self.at += 1;
                Turn::Next
            }
            Some(b'{') => {
                let mut plain = !self.live;
                if self.doubled && !self.list {
                    match text[self.at + 1..].bytes().next() {
                        None => return Turn::More,
                        // The call is the inner object; a brace too many at its end goes when the block closes.
                        Some(b'{') => {
                            self.at += 1;
                            plain = true;
                        }
                        Some(_) => {}
                    }
                }
                self.state = State::Object { start: self.at, scan: JsonScan::default(), plain };
                Turn::Next
            }
            Some(_) => Turn::Bad("there is no call where one must stand".into()),
        }
    }

    fn object(&mut self, text: &str, tools: &Declared, out: &mut Vec<Event>) -> Turn {
        let State::Object { start, scan, plain } = &mut self.state else { return Turn::Next };
        let start = *start;
        if !*plain {
            match head(&text[start..], tools) {
                Head::More => return Turn::More,
                Head::No => *plain = true,
                Head::Is { name, arguments } => {
                    out.push(Event::Start(name));
                    self.at = start + arguments;
                    self.state =
                        State::Live { sent: self.at, scan: JsonScan::default(), after: After::Object };
                    return Turn::Next;
                }
            }
        }
        match scan.run(text, self.at) {
            Scan::More => {
                self.at = text.len();
                Turn::More
            }
            Scan::End(end) => {
                self.at = end;
                let told = !self.opener.own;
                let call = read_call(&text[start..end], told).and_then(|call| self.found(vec![call], tools));
                if let Err(why) = call {
                    return Turn::Bad(why);
                }
                if self.list && self.opener.own && self.fault.is_none() {
                    self.give(out);
                }
                self.state = State::AfterValue;
                Turn::Next
            }
            Scan::Bad(at) => {
                self.at = at;
                Turn::Bad("the call is no JSON".into())
            }
        }
    }

    fn stream(&mut self, text: &str, out: &mut Vec<Event>) -> Turn {
        let State::Live { sent, scan, after } = &mut self.state else { return Turn::Next };
        let (end, turn) = match scan.run(text, self.at) {
            Scan::More => (text.len(), Turn::More),
            Scan::End(end) => (end, Turn::Next),
            Scan::Bad(at) => (at, Turn::Bad("the arguments are no JSON".into())),
        };
        if end > *sent {
            out.push(Event::Arguments(text[*sent..end].to_owned()));
        }
        *sent = end;
        self.at = end;
        self.given = end;
        if matches!(turn, Turn::Next) {
            out.push(Event::End);
            self.calls += 1;
            self.state = match after {
                After::Object => State::Rest(JsonScan::inside_object()),
                After::Arguments => State::AfterArguments,
            };
        }
        turn
    }

    fn after_value(&mut self, text: &str) -> Turn {
        if !self.list {
            self.state = State::Close { surplus: 0 };
            return Turn::Next;
        }
        self.space(text);
        match text[self.at..].bytes().next() {
            None => Turn::More,
            Some(b',') if self.is_enough() => Turn::Done,
            Some(b',') => {
                self.at += 1;
                self.state = State::Value;
                Turn::Next
            }
            Some(b']') => {
                self.at += 1;
                self.state = State::Close { surplus: 0 };
                Turn::Next
            }
            Some(_) => Turn::Bad("the list of calls is no JSON".into()),
        }
    }

    fn close(&mut self, text: &str) -> Turn {
        let State::Close { surplus } = &mut self.state else { return Turn::Next };
        if self.opener.close.is_empty() {
            let may = self.doubled && !self.list && *surplus < 2;
            return match text[self.at..].bytes().next() {
                None if may => Turn::More,
                Some(b'}') if may => {
                    *surplus += 1;
                    self.at += 1;
                    Turn::Next
                }
                _ => Turn::Done,
            };
        }
        self.at = after_space(text, self.at);
        let rest = &text[self.at..];
        match starts(rest, self.opener.close) {
            Seen::Yes => {
                self.at += self.opener.close.len();
                Turn::Done
            }
            Seen::Part => Turn::More,
            // Small models close a bracket too many.
            Seen::No if rest.starts_with(['}', ']']) && *surplus < 2 => {
                *surplus += 1;
                self.at += 1;
                Turn::Next
            }
            Seen::No if rest.starts_with('{') && !self.list && self.is_enough() => Turn::Done,
            Seen::No if rest.starts_with('{') && !self.list => {
                self.state = State::Value;
                Turn::Next
            }
            Seen::No => Turn::Bad("the call does not end where it should".into()),
        }
    }

    fn call_open(&mut self, text: &str) -> Turn {
        let (Body::Named(named) | Body::InNamed(named)) = self.opener.body else { return Turn::Done };
        self.at = after_space(text, self.at);
        let rest = &text[self.at..];
        match (starts(rest, named.open), starts(rest, named.end)) {
            (Seen::Yes, _) if self.is_enough() => Turn::Done,
            (Seen::Yes, _) => {
                self.at += named.open.len();
                self.state = State::Name;
                Turn::Next
            }
            (_, Seen::Yes) if self.calls > 0 => {
                self.at += named.end.len();
                Turn::Done
            }
            (Seen::Part, _) | (_, Seen::Part) => Turn::More,
            _ => Turn::Bad("there is no call after the marker".into()),
        }
    }

    fn named(&mut self, text: &str, tools: &Declared) -> Turn {
        let (Body::Named(named) | Body::InNamed(named)) = self.opener.body else { return Turn::Done };
        let rest = &text[self.at..];
        // A name stands before the arguments' brace; what is around it differs between a family's versions.
        let whole = (!named.arguments.is_empty()).then(|| rest.find(named.arguments)).flatten();
        let brace = rest.find('{');
        let none = (!named.close.is_empty()).then(|| rest.find(named.close)).flatten();
        let end = [whole, brace, none].into_iter().flatten().min();
        let Some(end) = end.filter(|end| *end <= tools.head()) else {
            if end.is_none() && rest.len() <= tools.head() {
                return Turn::More;
            }
            self.at = text.floor_char_boundary(self.at + tools.head());
            return Turn::Bad("the call names no tool".into());
        };
        let name = clean(&rest[..end], named);
        if whole == Some(end) {
            self.at += end + named.arguments.len();
        } else {
            self.at += end;
        }
        if !tools.has(name) {
            return Turn::Bad(unknown(name));
        }
        self.name = name.to_owned();
        self.state = State::Arguments;
        Turn::Next
    }

    /// Adds the call of the name that was read.
    fn found_named(&mut self, arguments: String, tools: &Declared) -> Turn {
        let call = Call { name: std::mem::take(&mut self.name), arguments };
        self.state = State::AfterArguments;
        self.found(vec![call], tools).map_or_else(Turn::Bad, |()| Turn::Next)
    }

    fn begin_arguments(&mut self, text: &str, tools: &Declared, out: &mut Vec<Event>) -> Turn {
        let (Body::Named(named) | Body::InNamed(named)) = self.opener.body else { return Turn::Done };
        self.space(text);
        let rest = &text[self.at..];
        if rest.starts_with('{') {
            self.state = if self.live {
                out.push(Event::Start(std::mem::take(&mut self.name)));
                State::Live { sent: self.at, scan: JsonScan::default(), after: After::Arguments }
            } else {
                State::Held { start: self.at, scan: JsonScan::default() }
            };
            return Turn::Next;
        }
        if rest.is_empty() {
            return Turn::More;
        }
        if !named.close.is_empty() {
            match starts(rest, named.close) {
                Seen::Yes => return self.found_named("{}".into(), tools),
                Seen::Part => return Turn::More,
                Seen::No => {}
            }
        }
        Turn::Bad("the arguments are no JSON object".into())
    }

    fn after_arguments(&mut self, text: &str, out: &mut Vec<Event>) -> Turn {
        let (Body::Named(named) | Body::InNamed(named)) = self.opener.body else { return Turn::Done };
        if named.close.is_empty() {
            return Turn::Done;
        }
        self.at = after_space(text, self.at);
        let mut rest = &text[self.at..];
        let fence = named.after.trim();
        if !fence.is_empty() {
            match starts(rest, fence) {
                Seen::Yes => rest = rest[fence.len()..].trim_start_matches([' ', '\t', '\r', '\n']),
                Seen::Part => return Turn::More,
                Seen::No => {}
            }
        }
        match starts(rest, named.close) {
            Seen::Yes => {
                self.at = text.len() - rest.len() + named.close.len();
                // The section goes on: what comes after a bad call is read for itself.
                if let Some(why) = &self.fault {
                    return Turn::Bad(why.clone());
                }
                self.give(out);
                self.state = State::CallOpen;
                if self.is_enough() && !self.live { Turn::Done } else { Turn::Next }
            }
            Seen::Part => Turn::More,
            Seen::No => Turn::Bad("the call does not end where it should".into()),
        }
    }

    fn code(&mut self, text: &str, tools: &Declared) -> Turn {
        let State::Code { start, scan, inside } = &mut self.state else { return Turn::Next };
        if *inside {
            match scan.run(text, self.at) {
                Scan::More => {
                    self.at = text.len();
                    return Turn::More;
                }
                Scan::End(end) => {
                    let calls = statement(&text[*start..end], tools);
                    self.at = end;
                    match calls.and_then(|calls| self.found(calls, tools)) {
                        Ok(()) if self.is_enough() => return Turn::Done,
                        Ok(()) => {
                            self.state =
                                State::Code { start: end, scan: PythonScan::default(), inside: false };
                            return Turn::Next;
                        }
                        Err(why) => return Turn::Bad(why),
                    }
                }
                Scan::Bad(at) => {
                    self.at = at;
                    return Turn::Bad("the call is no Python".into());
                }
            }
        }
        // Between statements: the next begins, or the fence closes.
        self.at = after_space(text, self.at);
        let rest = &text[self.at..];
        match starts(rest, self.opener.close) {
            Seen::Yes if !self.found.is_empty() => {
                self.state = State::Close { surplus: 0 };
                Turn::Next
            }
            Seen::Part => Turn::More,
            Seen::Yes => Turn::Bad("there is no call in the code".into()),
            Seen::No => {
                let name = rest.strip_prefix("print(").unwrap_or(rest);
                let listed = name.strip_prefix('[').unwrap_or(name);
                if tools.called(listed).is_some() {
                    *start = self.at;
                    *inside = true;
                    Turn::Next
                } else if tools.may_be_called(listed) || "print(".starts_with(rest) {
                    Turn::More
                } else {
                    Turn::Bad("the code is more than calls".into())
                }
            }
        }
    }
}

/// Where white space that begins at `at` ends.
pub(super) fn after_space(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start_matches([' ', '\t', '\r', '\n']).len()
}

fn unknown(name: &str) -> String {
    let shown: String = name.chars().take(64).collect();
    format!("there is no tool {shown:?}")
}

/// The name in what stands before a call's arguments.
fn clean<'a>(said: &'a str, named: &Named) -> &'a str {
    let mut name = said.strip_prefix(named.prefix).unwrap_or(said);
    // DeepSeek's fence, the separator before it, and Mistral's call id.
    for end in ["```json", "```", "<｜tool▁sep｜>", "[ARGS]"] {
        name = name.trim_end().strip_suffix(end).unwrap_or(name);
    }
    name = name.split("[CALL_ID]").next().unwrap_or_default().trim();
    if named.numbered {
        let (before, number) = name.rsplit_once(':').unwrap_or((name, "0"));
        if number.bytes().all(|b| b.is_ascii_digit()) {
            name = before;
        }
    }
    name
}

/// Whether a text begins with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    /// It may, once there is more of it.
    Part,
    No,
}

pub(super) fn starts(text: &str, with: &str) -> Seen {
    if text.starts_with(with) {
        Seen::Yes
    } else if with.starts_with(text) {
        Seen::Part
    } else {
        Seen::No
    }
}

enum Head {
    More,
    Is { name: String, arguments: usize },
    No,
}

/// The head of a call, up to the brace of its arguments. Told within a bound.
fn head(whole: &str, tools: &Declared) -> Head {
    let text = &whole[..whole.floor_char_boundary(tools.head())];
    let at = |rest: &str| text.len() - rest.len();
    let more = || if text.len() < whole.len() { Head::No } else { Head::More };
    let mut rest = text;
    for word in ["{", "\"name\"", ":"] {
        match starts(rest.trim_start(), word) {
            Seen::Yes => rest = &rest.trim_start()[word.len()..],
            Seen::Part => return more(),
            Seen::No => return Head::No,
        }
    }
    let name = match quoted(rest.trim_start()) {
        Quoted::More => return more(),
        Quoted::No => return Head::No,
        Quoted::Whole(name, length) => {
            rest = &rest.trim_start()[length..];
            name
        }
    };
    match starts(rest.trim_start(), ",") {
        Seen::Yes => rest = rest.trim_start()[1..].trim_start(),
        Seen::Part => return more(),
        Seen::No => return Head::No,
    }
    let key = match (starts(rest, "\"arguments\""), starts(rest, "\"parameters\"")) {
        (Seen::Yes, _) => "\"arguments\"",
        (_, Seen::Yes) => "\"parameters\"",
        (Seen::No, Seen::No) => return Head::No,
        _ => return more(),
    };
    rest = &rest[key.len()..];
    for word in [":", "{"] {
        match starts(rest.trim_start(), word) {
            Seen::Yes if word == "{" => rest = rest.trim_start(),
            Seen::Yes => rest = &rest.trim_start()[word.len()..],
            Seen::Part => return more(),
            Seen::No => return Head::No,
        }
    }
    if tools.has(&name) { Head::Is { name, arguments: at(rest) } } else { Head::No }
}
