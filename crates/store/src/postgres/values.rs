//! Values as Postgres sends and takes them, in its binary format.
//!
//! Whole numbers of any width, truth values (0 and 1, as in SQLite) and texts come as [`Value`]s; a sum, which Postgres
//! gives as `numeric`, where it is a whole number of 64 bits. Any other type is an error that names it.

use crate::Value;
use std::error::Error;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// The type a placeholder is declared with, so that it means what it does in SQLite; nothing says none.
pub(super) const fn declared(value: &Value) -> Type {
    match value {
        Value::Null => Type::UNKNOWN,
        Value::Integer(_) => Type::INT8,
        Value::Text(_) => Type::TEXT,
    }
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(number) => number.to_sql(kind, out),
            Self::Text(text) => text.to_sql(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        // The types are those that were declared.
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *kind {
            Type::INT8 => Self::Integer(i64::from_sql(kind, raw)?),
            Type::INT4 => Self::Integer(i32::from_sql(kind, raw)?.into()),
            Type::INT2 => Self::Integer(i16::from_sql(kind, raw)?.into()),
            Type::BOOL => Self::Integer(bool::from_sql(kind, raw)?.into()),
            Type::NUMERIC => Self::Integer(whole(raw).ok_or("a number is no whole one of 64 bits")?),
            Type::FLOAT8 => Self::Text(f64::from_sql(kind, raw)?.to_string()),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
                Self::Text(String::from_utf8(raw.to_vec())?)
            }
            _ => return Err(format!("a column has the type {kind}, which the store does not know").into()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// A `numeric`: counts of digits to the base 10,000, the first one's power, sign and scale as 16 bits each, then the
/// digits (`numeric_send` in Postgres's `numeric.c`).
fn whole(raw: &[u8]) -> Option<i64> {
    let word = |at: usize| Some(u16::from_be_bytes(raw.get(2 * at..2 * at + 2)?.try_into().ok()?));
    let (count, power, sign) = (word(0)?, word(1)?.cast_signed(), word(2)?);
    let mut number: i128 = 0;
    for place in 0..count {
        let digit = i128::from(word(4 + usize::from(place))?);
        let power = i32::from(power) - i32::from(place);
        match u32::try_from(power) {
            // 10,000 to the fifth is more than 64 bits hold.
            Ok(power) if power <= 4 => number += digit * 10_000_i128.pow(power),
            Ok(_) if digit != 0 => return None,
            Err(_) if digit != 0 => return None,
            _ => {}
        }
    }
    match sign {
        0 => i64::try_from(number).ok(),
        0x4000 => i64::try_from(-number).ok(),
        // Not a number, or infinite.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numeric(power: i16, sign: u16, digits: &[u16]) -> Option<i64> {
        let head = [digits.len() as u16, power.cast_unsigned(), sign, 0];
        whole(&head.iter().chain(digits).flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn a_sum_is_a_number_where_it_is_whole_and_fits() {
        assert_eq!(numeric(0, 0, &[]), Some(0));
        assert_eq!(numeric(0, 0, &[42]), Some(42));
        assert_eq!(numeric(2, 0, &[7]), Some(700_000_000));
        assert_eq!(numeric(4, 0, &[922, 3372, 368, 5477, 5807]), Some(i64::MAX));
        assert_eq!(numeric(4, 0x4000, &[922, 3372, 368, 5477, 5808]), Some(i64::MIN));
        assert_eq!(numeric(4, 0, &[922, 3372, 368, 5477, 5808]), None);
        assert_eq!(numeric(9, 0, &[1]), None);
        assert_eq!(numeric(0, 0, &[1, 5000]), None, "one and a half");
        assert_eq!(numeric(0, 0xC000, &[]), None, "not a number");
        assert_eq!(whole(&[0, 1]), None);
    }
}
