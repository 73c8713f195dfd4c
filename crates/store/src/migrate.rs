//! Brings tables up to date: forward only, each part's own steps in their order, each once.
//!
//! A step is one text for both databases. Where they differ, a line `--@ sqlite` begins what SQLite alone does, a line
//! `--@ postgres` what Postgres alone does, and a line `--@ both` ends either. Not here: the transaction around it, which
//! keeps other processes out.

use crate::postgres::translate;
use crate::work::Work;
use crate::{Error, Value};

/// A part of the program that has tables.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its name; its tables begin with it.
    pub name: &'static str,
    /// How its tables came to be what they are. A step that was ever released is never changed in what it does.
    pub steps: &'static [&'static str],
}

/// A kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// Does what has not been done yet, all of it or nothing.
pub(crate) fn run(work: &Work<'_>, kind: Kind, parts: &[Part], place: &str) -> Result<(), Error> {
    work.step(&text(
        "CREATE TABLE IF NOT EXISTS migrations (part TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT",
        kind,
    ))?;
    for part in parts {
        let name = Value::from(part.name);
        let found =
            work.query("SELECT version FROM migrations WHERE part = ?1", std::slice::from_ref(&name))?;
        let found = found.first().map_or(Ok(0), |row| row.integer(0))?.unsigned_abs();
        let known = part.steps.len() as u64;
        if found > known {
            let (place, part) = (place.to_owned(), part.name.to_owned());
            return Err(Error::Newer { place, part, found, known });
        }
        for step in part.steps.iter().skip(found as usize) {
            work.step(&text(step, kind))?;
        }
        work.execute(
            "INSERT INTO migrations VALUES (?1, ?2) ON CONFLICT (part) DO UPDATE SET version = excluded.version",
            &[name, (known as i64).into()],
        )?;
    }
    Ok(())
}

/// A step as one database takes it.
fn text(step: &str, kind: Kind) -> String {
    let mut sections = vec![(None, String::new())];
    for line in step.lines() {
        match line.trim() {
            "--@ sqlite" => sections.push((Some(Kind::Sqlite), String::new())),
            "--@ postgres" => sections.push((Some(Kind::Postgres), String::new())),
            "--@ both" => sections.push((None, String::new())),
            _ => {
                let (_, text) = sections.last_mut().expect("there is one from the start");
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    let own = sections.into_iter().filter(|(only, _)| only.is_none_or(|only| only == kind));
    own.map(|(only, text)| match (kind, only) {
        (Kind::Postgres, None) => translate::step(&text),
        _ => text,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_database_does_what_is_for_both_and_what_is_its_own() {
        let step =
            "CREATE TABLE a (b INTEGER) STRICT;\n--@ sqlite\nS;\n--@ postgres\nINTEGER;\n--@ both\nD;\n";
        assert_eq!(text(step, Kind::Sqlite), "CREATE TABLE a (b INTEGER) STRICT;\nS;\nD;\n");
        assert_eq!(text(step, Kind::Postgres), "CREATE TABLE a (b BIGINT);\nINTEGER;\nD;\n");
    }
}
