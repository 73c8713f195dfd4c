//! Finds secrets and personal data in plain text, in one pass.
//!
//! A find begins where a word does (or at a `+`, a `(` or a `-----BEGIN`), and each kind says how far it goes. What is
//! found first wins, and the pass goes on behind it.

use super::checks;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const SECRET: &str = "[secret]";
pub(crate) const CARD: &str = "[card]";
pub(crate) const PRIVATE_KEY: &str = "[private key]";
pub(crate) const EMAIL: &str = "[email]";
pub(crate) const PHONE: &str = "[phone]";
pub(crate) const IBAN: &str = "[iban]";
pub(crate) const ADDRESS: &str = "[ip address]";

/// Beginnings of API keys and tokens that nothing else begins with, and how many characters must follow, with a digit or a
/// capital letter among them.
const KEYS: &[(&str, usize)] = &[
    ("hearth_", 40),
    ("sk-ant-", 16),
    ("sk-proj-", 16),
    ("sk-or-v1-", 16),
    ("sk-svcacct-", 16),
    ("sk-admin-", 16),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("rk_test_", 16),
    ("github_pat_", 30),
    ("glpat-", 16),
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxe-", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("xapp-", 10),
    ("AIza", 30),
    ("ya29.", 20),
    ("nvapi-", 20),
    ("pypi-", 60),
    ("dop_v1_", 30),
    ("SG.", 30),
    ("AGE-SECRET-KEY-", 30),
];

/// Beginnings that names in programs have too: so many letters and digits, both of them, must stand in one run behind.
const SHORT_KEYS: &[(&str, usize)] = &[
    ("sk-", 16),
    ("pk-", 24),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghu_", 30),
    ("ghs_", 30),
    ("ghr_", 30),
    ("gsk_", 20),
    ("xai-", 20),
    ("hf_", 20),
    ("r8_", 20),
    ("pplx-", 20),
    ("fw_", 16),
    ("csk-", 20),
    ("npm_", 30),
];

/// How far it is looked whether something is a key; what is one goes on to its end.
const KEY_MAX: usize = 512;

/// Longest password in an address, with what stands around it.
const AUTHORITY_MAX: usize = 4096;

/// Longest address with its port.
const ADDRESS_MAX: usize = 64;

/// Texts of base64's letters that are so long, and no shorter ones, are bytes: no key is.
const ENCODED: usize = 1024;

/// Longest local part and domain of an e-mail address (RFC 5321, section 4.5.3.1).
const EMAIL_PARTS: (usize, usize) = (64, 255);

/// A text without them; the same one where there were none.
pub(super) fn redacted(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut from = 0;
    for (start, end, word) in finds(text) {
        out.push_str(&text[from..start]);
        out.push_str(word);
        from = end;
    }
    if from == 0 && out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[from..]);
    Cow::Owned(out)
}

/// What is found: `[start, end)` in bytes, and what stands for it.
pub(super) fn finds(text: &str) -> Vec<(usize, usize, &'static str)> {
    let bytes = text.as_bytes();
    let mut finds = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        // Of JSON within a string the escapes are still there, and are no part of the word behind.
        if byte == b'\\' && matches!(bytes.get(at + 1), Some(b'n' | b't' | b'r')) {
            at += 2;
            continue;
        }
        let begins = byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'(' | b'-' | b':' | b'_' | b'.');
        if !begins {
            at += 1;
            continue;
        }
        match find(bytes, at) {
            Some((start, end, word)) => {
                finds.push((start, end, word));
                at = end;
            }
            // A word is looked at once, from its beginning.
            None if is_word(byte) => at += bytes[at..].iter().take_while(|byte| is_word(**byte)).count(),
            None => at += 1,
        }
    }
    finds
}

/// Adds the words for what is found in a text.
pub(super) fn found(text: &str, words: &mut BTreeSet<&'static str>) {
    if !is_encoded(text) {
        words.extend(finds(text).into_iter().map(|(_, _, word)| word));
    }
}

/// Whether a text is `data:TYPE;base64,BYTES`, or long and of the letters of base64 alone: bytes in which anything may be
/// found.
fn is_encoded(text: &str) -> bool {
    let of_bytes =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_');
    let url = text.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let bytes = url.filter(|(kind, _)| kind.len() < 128).map(|(_, bytes)| bytes);
    let bytes = bytes.or_else(|| (text.len() >= ENCODED).then_some(text));
    bytes.is_some_and(|bytes| bytes.bytes().all(of_bytes))
}

type Find = (usize, usize, &'static str);

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// What begins there. Each kind is looked for only where its first byte, or what stands behind the word, allows it.
fn find(bytes: &[u8], at: usize) -> Option<Find> {
    let byte = bytes[at];
    let behind = bytes.get(at + run(bytes, at, EMAIL_PARTS.0 + 1, is_local)).copied();
    let when = |may: bool, find: fn(&[u8], usize) -> Option<Find>| if may { find(bytes, at) } else { None };
    when(byte == b'-', private_key)
        .or_else(|| when(matches!(byte, b'b' | b'B'), bearer))
        .or_else(|| when(behind == Some(b':'), password))
        .or_else(|| when(MAY_BEGIN_KEY[usize::from(byte)], key))
        .or_else(|| when(behind == Some(b'@'), email))
        .or_else(|| when(byte.is_ascii_uppercase(), iban))
        .or_else(|| when(byte.is_ascii_hexdigit() || byte == b':', address))
        .or_else(|| when(byte.is_ascii_digit(), card))
        .or_else(|| when(byte.is_ascii_digit() || matches!(byte, b'+' | b'('), phone))
}

/// The bytes that some key begins with.
const MAY_BEGIN_KEY: [bool; 256] = {
    let mut may = [false; 256];
    let mut number = 0;
    while number < KEYS.len() {
        may[KEYS[number].0.as_bytes()[0] as usize] = true;
        number += 1;
    }
    number = 0;
    while number < SHORT_KEYS.len() {
        may[SHORT_KEYS[number].0.as_bytes()[0] as usize] = true;
        number += 1;
    }
    // Web tokens; Amazon's begin as Google's do.
    may[b'e' as usize] = true;
    may
};

const fn is_local(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'%' | b'+' | b'-')
}

/// How many bytes from there on are such, but for those beyond `most`: a text that looks like a find at each of its places
/// must not be read to its end at each.
fn run(bytes: &[u8], at: usize, most: usize, is: impl Fn(u8) -> bool) -> usize {
    bytes.get(at..).map_or(0, |rest| rest.iter().take(most).take_while(|byte| is(**byte)).count())
}

fn starts(bytes: &[u8], at: usize, with: &[u8]) -> bool {
    bytes.get(at..at + with.len()).is_some_and(|start| start == with)
}

fn position(bytes: &[u8], from: usize, wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes.get(from..)?, wanted).map(|found| from + found)
}

/// `-----BEGIN … PRIVATE KEY-----` to its end, or that of the text.
fn private_key(bytes: &[u8], at: usize) -> Option<Find> {
    if !starts(bytes, at, b"-----BEGIN ") {
        return None;
    }
    let label = at + b"-----BEGIN ".len();
    let length =
        run(bytes, label, 64, |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' ');
    let name = &bytes[label..label + length];
    if !name.ends_with(b"PRIVATE KEY") && !name.ends_with(b"PRIVATE KEY BLOCK") {
        return None;
    }
    let end = position(bytes, label, b"-----END ").and_then(|end| {
        let dashes = position(bytes, end + b"-----END ".len(), b"-----")?;
        Some(dashes + 5)
    });
    Some((at, end.unwrap_or(bytes.len()), PRIVATE_KEY))
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'+' | b'/' | b'=')
}

/// What stands behind `Bearer `.
fn bearer(bytes: &[u8], at: usize) -> Option<Find> {
    let scheme = bytes.get(at..at + 7)?;
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return None;
    }
    let start = at + 7 + run(bytes, at + 7, 16, |byte| byte == b' ');
    let length = run(bytes, start, usize::MAX, is_token);
    let token = &bytes[start..start + length];
    // "Bearer authentication" is none.
    let is_made =
        token.iter().any(u8::is_ascii_digit) || length >= 20 && token[1..].iter().any(u8::is_ascii_uppercase);
    (length >= 12 && is_made).then_some((start, start + length, SECRET))
}

/// The password of `scheme://user:password@host`.
fn password(bytes: &[u8], at: usize) -> Option<Find> {
    let scheme =
        run(bytes, at, 33, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    if scheme == 0 || scheme > 32 || !starts(bytes, at + scheme, b"://") {
        return None;
    }
    let start = at + scheme + 3;
    let length = run(bytes, start, AUTHORITY_MAX, |byte| {
        !byte.is_ascii_whitespace() && !matches!(byte, b'/' | b'?' | b'#' | b'"' | b'<' | b'>')
    });
    let authority = &bytes[start..start + length];
    // A password may hold an @ of its own; what counts is the last one.
    let user = authority.iter().rposition(|byte| *byte == b'@')?;
    let colon = authority[..user].iter().position(|byte| *byte == b':')?;
    let password = &authority[colon + 1..user];
    (!password.is_empty() && !is_placeholder(password)).then_some((start + colon + 1, start + user, SECRET))
}

/// Whether a text says where a password comes from: `${NAME}`, `$NAME`, `{name}`, or stars.
fn is_placeholder(text: &[u8]) -> bool {
    let inner = text.strip_prefix(b"$").unwrap_or(text);
    let braced = inner.starts_with(b"{") && inner.ends_with(b"}");
    let is_name = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    braced || inner.len() < text.len() && inner.iter().all(is_name) || text.iter().all(|byte| *byte == b'*')
}

fn key(bytes: &[u8], at: usize) -> Option<Find> {
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    // Where it ends; a sentence may end behind it.
    let end = |most: usize| {
        let mut end = at + run(bytes, at, most, is_key);
        while end > at && bytes[end - 1] == b'.' {
            end -= 1;
        }
        end
    };
    let looks = |start: &str, least: usize| {
        start.as_bytes()[0] == bytes[at] && starts(bytes, at, start.as_bytes()) && {
            let rest = bytes.get(at + start.len()..end(KEY_MAX)).unwrap_or_default();
            rest.len() >= least && rest.iter().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
        }
    };
    // JSON Web Tokens: three parts, the first two begin with `{"`.
    let is_web_token = || {
        looks("eyJ", 27) && bytes[at..end(KEY_MAX)].iter().filter(|byte| **byte == b'.').count() >= 2
            || starts(bytes, at, b"eyJ") && end(KEY_MAX) - at == KEY_MAX
    };
    let is_short = |start: &str, least: usize| {
        start.as_bytes()[0] == bytes[at] && starts(bytes, at, start.as_bytes()) && {
            let rest = bytes.get(at + start.len()..end(KEY_MAX)).unwrap_or_default();
            rest.split(|byte| !byte.is_ascii_alphanumeric()).any(|run| {
                run.len() >= least
                    && run.iter().any(u8::is_ascii_digit)
                    && run.iter().any(u8::is_ascii_alphabetic)
            })
        }
    };
    if KEYS.iter().any(|(start, least)| looks(start, *least))
        || SHORT_KEYS.iter().any(|(start, least)| is_short(start, *least))
        || is_web_token()
    {
        return Some((at, end(usize::MAX), SECRET));
    }
    // Amazon's access key ids.
    let upper = run(bytes, at, 21, |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let is_amazon = upper == 20
        && (starts(bytes, at, b"AKIA") || starts(bytes, at, b"ASIA"))
        && !bytes.get(at + 20).copied().is_some_and(is_word);
    is_amazon.then_some((at, at + 20, SECRET))
}

fn email(bytes: &[u8], at: usize) -> Option<Find> {
    let local = run(bytes, at, EMAIL_PARTS.0 + 1, is_local);
    if local == 0 || local > EMAIL_PARTS.0 || bytes.get(at + local) != Some(&b'@') {
        return None;
    }
    // The user of every Git server.
    if &bytes[at..at + local] == b"git" {
        return None;
    }
    let start = at + local + 1;
    let mut domain =
        run(bytes, start, EMAIL_PARTS.1, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    while domain > 0 && matches!(bytes[start + domain - 1], b'.' | b'-') {
        domain -= 1;
    }
    let name = &bytes[start..start + domain];
    let top = name.iter().rposition(|byte| *byte == b'.')?;
    let fine = top > 0 && name.len() - top > 2 && name.len() <= EMAIL_PARTS.1;
    (fine && name[top + 1..].iter().all(u8::is_ascii_alphabetic)).then_some((at, start + domain, EMAIL))
}

/// Letters and digits in groups of four with spaces, or in one.
fn iban(bytes: &[u8], at: usize) -> Option<Find> {
    let head = bytes.get(at..at + 4)?;
    if !(head[..2].iter().all(u8::is_ascii_uppercase) && head[2..].iter().all(u8::is_ascii_digit)) {
        return None;
    }
    let mut compact = Vec::with_capacity(34);
    let mut found = None;
    let mut place = at;
    while compact.len() < 34 {
        match bytes.get(place) {
            Some(byte) if byte.is_ascii_uppercase() || byte.is_ascii_digit() => compact.push(*byte),
            // A space between two groups.
            Some(b' ')
                if compact.len() % 4 == 0 && bytes.get(place + 1).is_some_and(u8::is_ascii_alphanumeric) =>
            {
                place += 1;
                continue;
            }
            _ => break,
        }
        place += 1;
        let ends = !bytes.get(place).copied().is_some_and(is_word);
        if compact.len() >= 15 && ends && checks::iban(&compact) {
            found = Some((at, place, IBAN));
        }
    }
    found
}

fn address(bytes: &[u8], at: usize) -> Option<Find> {
    let length = run(bytes, at, ADDRESS_MAX, |byte| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':'));
    let mut end = at + length;
    // A sentence may end, or a port follow.
    while end > at && matches!(bytes[end - 1], b'.' | b':') && !bytes[at..end].ends_with(b"::") {
        end -= 1;
    }
    let text = std::str::from_utf8(&bytes[at..end]).ok()?;
    if bytes.get(end).copied().is_some_and(is_word) {
        return None;
    }
    if bytes[at].is_ascii_digit() {
        let (host, _) = text.split_once(':').unwrap_or((text, ""));
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            // What is everybody's is nobody's.
            let plain = address.is_loopback() || address.is_unspecified() || address.is_broadcast();
            return (!plain).then_some((at, at + host.len(), ADDRESS));
        }
    }
    let colons = text.bytes().filter(|byte| *byte == b':').count();
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let is_address = colons >= 2 && digits >= 2 && text.len() >= 7 && text.parse::<Ipv6Addr>().is_ok();
    is_address.then_some((at, end, ADDRESS))
}

/// Digits with single spaces or dashes between; gives the digits and where each ends.
fn digits(bytes: &[u8], at: usize, most: usize) -> (Vec<u8>, Vec<usize>) {
    let (mut digits, mut ends) = (Vec::new(), Vec::new());
    let mut place = at;
    while digits.len() <= most {
        match bytes.get(place) {
            Some(byte) if byte.is_ascii_digit() => {
                digits.push(*byte);
                ends.push(place + 1);
            }
            Some(b' ' | b'-')
                if place > at
                    && bytes[place - 1].is_ascii_digit()
                    && bytes.get(place + 1).is_some_and(u8::is_ascii_digit) => {}
            _ => break,
        }
        place += 1;
    }
    (digits, ends)
}

/// Digits that begin as those of a card scheme do and are as many, with a right check digit.
fn card(bytes: &[u8], at: usize) -> Option<Find> {
    if !matches!(bytes[at], b'2'..=b'6') {
        return None;
    }
    let (digits, ends) = digits(bytes, at, 19);
    let end = *ends.last()?;
    let fits = is_of_scheme(&digits) && !bytes.get(end).copied().is_some_and(is_word);
    (fits && checks::luhn(&digits)).then_some((at, end, CARD))
}

/// Whether a number's beginning and length are those of a card scheme (ISO/IEC 7812 issuer identification numbers, as the
/// schemes publish them): Visa, Mastercard, American Express, Diners Club, Discover, JCB, UnionPay.
fn is_of_scheme(digits: &[u8]) -> bool {
    let Some(head) = digits.get(..4) else { return false };
    let head = head.iter().fold(0_u32, |head, digit| head * 10 + u32::from(digit - b'0'));
    match head {
        4000..=4999 => matches!(digits.len(), 13 | 16 | 19),
        5100..=5599 | 2221..=2720 => digits.len() == 16,
        3400..=3499 | 3700..=3799 => digits.len() == 15,
        3000..=3059 | 3600..=3699 | 3800..=3999 => matches!(digits.len(), 14 | 16 | 19),
        3528..=3589 | 6011 | 6440..=6599 | 6200..=6299 => (16..=19).contains(&digits.len()),
        _ => false,
    }
}

/// Whether a whole number is that of a card.
pub(super) fn is_card(number: &str) -> bool {
    !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
        && card(number.as_bytes(), 0).is_some_and(|(_, end, _)| end == number.len())
}

/// `+` and 8 to 15 digits (ITU-T E.164), or ten digits as `(212) 555-0100` and `212-555-0100`.
fn phone(bytes: &[u8], at: usize) -> Option<Find> {
    let is_between = |byte: u8| matches!(byte, b' ' | b'-' | b'.' | b'(' | b')' | b'/');
    let before = at.checked_sub(1).map(|before| bytes[before]);
    if before.is_some_and(is_word) {
        return None;
    }
    let american = bytes[at] == b'(' || bytes[at].is_ascii_digit();
    if bytes[at] != b'+' && !american {
        return None;
    }
    // No country code begins with a zero.
    if bytes[at] == b'+' && !matches!(bytes.get(at + 1), Some(b'1'..=b'9')) {
        return None;
    }
    let (mut digits, mut end, mut place, mut between) = (0, at, at, 0);
    let mut groups = Vec::new();
    let mut group = 0;
    if bytes[at] == b'+' {
        place += 1;
    }
    while let Some(byte) = bytes.get(place) {
        if byte.is_ascii_digit() {
            digits += 1;
            group += 1;
            between = 0;
            end = place + 1;
        } else if is_between(*byte) && between < 2 && digits < 15 {
            if group > 0 {
                groups.push(group);
                group = 0;
            }
            between += 1;
        } else {
            break;
        }
        place += 1;
    }
    groups.extend((group > 0).then_some(group));
    if bytes.get(end).copied().is_some_and(is_word) {
        return None;
    }
    let between = || bytes[at + 1..end].iter().filter(|byte| !byte.is_ascii_digit());
    // A number with a point is no phone's.
    let is_decimal = || between().count() == 1 && between().all(|byte| *byte == b'.');
    let fits = if american { groups == [3, 3, 4] } else { (8..=15).contains(&digits) && !is_decimal() };
    fits.then_some((at, end, PHONE))
}
