//! What stands as the proof of a thought (`signature`, or `data` of one that may not be read) on this wire.
//!
//! Claude's own proofs stand as they are. Where a model here thought there is none, and a text stands in for it; that of
//! another service is wrapped, so that it is known again and goes to nobody else. Both kinds begin alike in Base64
//! (`bXNnX`), by which `gateway` takes them out of what goes to Anthropic's API as it is.

use crate::Maker;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What stand-ins begin with: the id of the message that was answered.
const OURS: &str = "msg_";

/// What wraps begin with, before the maker's name, a colon and the proof. No message has such an id.
const ANOTHERS: &str = "msg_/";

/// What stands for a proof that a thought is unchanged. Clients send it back and look at it no further; it is not
/// checked then.
pub(super) fn stand_in(message: &str, block: usize) -> String {
    STANDARD.encode(format!("{message}:{block}"))
}

/// A proof as it goes out.
pub(super) fn written(proof: String, maker: &Maker) -> String {
    match maker {
        Maker::Anthropic => proof,
        other => STANDARD.encode(format!("{ANOTHERS}{}:{proof}", other.name())),
    }
}

/// A proof that came back, and whose it is; nothing where it stands in for one.
pub(super) fn read(wire: String) -> Option<(String, Maker)> {
    let decoded = STANDARD.decode(&wire).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(decoded) = decoded.filter(|decoded| decoded.starts_with(OURS)) else {
        return Some((wire, Maker::Anthropic));
    };
    let (maker, proof) = decoded.strip_prefix(ANOTHERS)?.split_once(':')?;
    Some((proof.to_owned(), Maker::named(maker)))
}
