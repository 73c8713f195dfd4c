//! Values on their way in and rows on their way out.

use crate::Error;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// None.
    Null,
    /// A whole number.
    Integer(i64),
    /// A text.
    Text(String),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One row of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Row(pub(crate) Vec<Value>);

impl Row {
    fn wrong(column: usize, expected: &str) -> Error {
        Error::Failed(format!("column {column} is no {expected}"))
    }

    /// The number in a column.
    ///
    /// # Errors
    /// When something else stands there.
    pub fn integer(&self, column: usize) -> Result<i64, Error> {
        match self.0.get(column) {
            Some(Value::Integer(number)) => Ok(*number),
            _ => Err(Self::wrong(column, "number")),
        }
    }

    /// The number in a column that may be empty.
    ///
    /// # Errors
    /// When something else stands there.
    pub fn optional_integer(&self, column: usize) -> Result<Option<i64>, Error> {
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.integer(column).map(Some),
        }
    }

    /// The text in a column.
    ///
    /// # Errors
    /// When something else stands there.
    pub fn text(&self, column: usize) -> Result<&str, Error> {
        match self.0.get(column) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(Self::wrong(column, "text")),
        }
    }

    /// The text in a column that may be empty.
    ///
    /// # Errors
    /// When something else stands there.
    pub fn optional_text(&self, column: usize) -> Result<Option<&str>, Error> {
        match self.0.get(column) {
            Some(Value::Null) => Ok(None),
            _ => self.text(column).map(Some),
        }
    }
}
