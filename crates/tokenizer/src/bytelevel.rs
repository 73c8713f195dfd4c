//! The byte-to-character alphabet of byte-level BPE (GPT-2): each byte is written as one printable
//! character, so that vocabularies are text. We turn it back at load and work on plain bytes.

use std::sync::LazyLock;

/// `character code -> byte`, for the 324 codes the alphabet uses; `None` for the holes.
static TO_BYTE: LazyLock<[Option<u8>; 324]> = LazyLock::new(|| {
    let mut table = [None; 324];
    let mut next = 256;
    for byte in 0..=255u8 {
        let code = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => usize::from(byte),
            _ => {
                next += 1;
                next - 1
            }
        };
        table[code] = Some(byte);
    }
    table
});

/// Appends the bytes that `text` stands for. If a character is outside the alphabet the text is taken
/// as it is: such tokens are literal. Returns whether the whole text was in the alphabet.
pub(crate) fn decode(text: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    let table = &*TO_BYTE;
    let decoded = std::str::from_utf8(text).is_ok_and(|text| {
        text.chars().all(|c| match table.get(c as usize) {
            Some(Some(byte)) => {
                out.push(*byte);
                true
            }
            _ => false,
        })
    });
    if !decoded {
        out.truncate(start);
        out.extend_from_slice(text);
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut bytes: Vec<u8> = TO_BYTE.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn a_space_is_written_as_g_with_a_dot() {
        let mut out = Vec::new();
        assert!(decode("Ġhi".as_bytes(), &mut out));
        assert_eq!(out, b" hi");
    }

    #[test]
    fn text_outside_the_alphabet_is_literal() {
        let mut out = b"x".to_vec();
        assert!(!decode("Ġ▁".as_bytes(), &mut out));
        assert_eq!(out, "xĠ▁".as_bytes());
    }
}
