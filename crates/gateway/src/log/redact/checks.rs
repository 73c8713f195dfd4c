//! Check digits.

/// Whether the digits of a card are right (ISO/IEC 7812-1, Luhn): from the right, each second digit counts twice, with its
/// own digits added up, and the sum is a multiple of ten.
pub(super) fn luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| {
            let digit = u32::from(digit - b'0') << (place % 2);
            if digit > 9 { digit - 9 } else { digit }
        })
        .sum();
    sum.is_multiple_of(10)
}

/// Whether the check digits of an IBAN are right (ISO 13616): its first four characters moved to the end and letters read
/// as 10 to 35, the number leaves one when it is divided by 97. `iban`: capital letters and digits only.
pub(super) fn iban(iban: &[u8]) -> bool {
    let rest = iban.iter().skip(4).chain(iban.iter().take(4)).fold(0_u32, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        _ => (rest * 100 + u32::from(byte.saturating_sub(b'A')) + 10) % 97,
    });
    rest == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_digits_are_those_of_published_examples() {
        for card in ["4111111111111111", "5555555555554444", "378282246310005", "6011111111111117"] {
            assert!(luhn(card.as_bytes()), "{card}");
        }
        for card in ["4111111111111112", "5555555555554443"] {
            assert!(!luhn(card.as_bytes()), "{card}");
        }
        for number in ["GB82WEST12345698765432", "DE89370400440532013000", "FR1420041010050500013M02606"] {
            assert!(iban(number.as_bytes()), "{number}");
        }
        assert!(!iban(b"GB82WEST12345698765433"));
    }
}
