//! Whether a request names content that does not stand in its body: kept responses, files, addresses of pictures. Its
//! bytes are no bound for the tokens of its prompt then.
//!
//! Names are looked for wherever they stand, and one that is written with escapes counts as one of them: to be wrong here
//! sets too much aside, never too little. Not here: what a provider adds by itself.

use memchr::{memchr_iter, memrchr};

/// Tokens that are set aside for a prompt whose content stands elsewhere, beside those of the body: the context of most
/// models. The price book tells no context.
pub const ELSEWHERE: u64 = 131_072;

/// Members that name what is kept, whatever they say.
const KEPT: &[&[u8]] = &[
    b"cachedContent",
    b"cached_content",
    b"conversation",
    b"fileUri",
    b"file_id",
    b"file_ids",
    b"file_uri",
    b"previous_response_id",
    b"s3Location",
    b"vector_store_ids",
];

/// Members that hold an address, or the thing itself as a data URL.
const ADDRESSES: &[&[u8]] =
    &[b"audio_url", b"file_data", b"file_url", b"image", b"image_url", b"url", b"video_url"];

/// The longest of these names.
const NAME_MAX: usize = 32;

/// The most tokens that a prompt with this body can have.
#[must_use]
pub fn longest_prompt(body: &[u8]) -> u64 {
    let beside = if names_elsewhere(body) { ELSEWHERE } else { 0 };
    (body.len() as u64).saturating_add(beside)
}

fn names_elsewhere(body: &[u8]) -> bool {
    memchr_iter(b':', body).any(|at| {
        let Some(before) = body[..at].trim_ascii_end().strip_suffix(b"\"") else { return false };
        let near = &before[before.len().saturating_sub(6 * NAME_MAX)..];
        let Some(quote) = memrchr(b'"', near) else { return false };
        let (name, value) = (&near[quote + 1..], body[at + 1..].trim_ascii_start());
        if value.starts_with(b"null") || name.ends_with(b"\\") {
            // The latter is a quote inside a text.
            return false;
        }
        let is_address = value.starts_with(b"\"") && !value.starts_with(b"\"data:");
        name.contains(&b'\\') || KEPT.contains(&name) || (ADDRESSES.contains(&name) && is_address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_elsewhere_is_set_aside_beside_the_body() {
        for body in [
            r#"{"previous_response_id": "resp_1"}"#,
            r#"{"previous\u005fresponse_id":"resp_1"}"#,
            r#"{"conversation":{"id":"c"}}"#,
            r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url" : "https://a/b"}}]}]}"#,
            r#"{"contents":[{"parts":[{"fileData":{"fileUri":"gs://a"}}]}]}"#,
        ] {
            assert_eq!(longest_prompt(body.as_bytes()), body.len() as u64 + ELSEWHERE, "{body}");
        }
        for body in [
            r#"{"previous_response_id":null}"#,
            r#"{"image_url":{"url":"data:image/png;base64,AA"}}"#,
            r#"{"content":"{\"url\":\"https://a/b\", \"file_id\": 1}: \"x\":"}"#,
            r#"{"tools":[{"parameters":{"properties":{"url":{"type":"string"}}}}]}"#,
            "",
        ] {
            assert_eq!(longest_prompt(body.as_bytes()), body.len() as u64, "{body}");
        }
    }
}
