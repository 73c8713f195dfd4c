//! The connection that writes: groups of jobs, each job behind a savepoint, all behind the lock.
//!
//! Invariants: a job succeeds only if the commit that holds it was confirmed, by its answer or by the writer's row; a
//! job runs at most once; when the connection is lost, the jobs of its transaction fail together and those that had not
//! begun run on the next one.

use super::reader::away;
use super::session::{ATTEMPTS, Session};
use super::{LOCK, Server, TABLES};
use crate::Error;
use crate::migrate::{self, Kind, Part};
use crate::work::{Statements, Work};
use crate::writer::{Database, Job};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Time to find out what became of a commit whose answer was lost.
const SETTLING: Duration = Duration::from_secs(15);

/// Time between two tries of that.
const SETTLING_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Writer {
    server: Server,
    session: Option<Session>,
    /// Names this writer's row; nobody else ever has it.
    id: String,
    /// Commits that were tried.
    commits: u64,
}

impl Writer {
    /// Connects and brings the tables up to date.
    pub(crate) fn open(server: Server, parts: &[Part]) -> Result<Self, Error> {
        let session = server.connect(true)?;
        let place = server.address().to_string();
        session.batch(&begin(""))?;
        let id = Work::run(&session, |work| {
            let version = work.query("SELECT current_setting('server_version_num')", &[])?;
            let version = version.first().map_or(Ok(""), |row| row.text(0))?;
            if version.parse::<u32>().unwrap_or_default() < 130_000 {
                return Err(Error::Failed("Postgres 13 or newer is needed".to_owned()));
            }
            migrate::run(work, Kind::Postgres, &[&[TABLES], parts].concat(), &place)?;
            // Writers that ended long ago have nothing to find out any more.
            work.execute("DELETE FROM store_writers WHERE used < extract(epoch FROM now()) - 86400", &[])?;
            let id = work.query("SELECT gen_random_uuid()::text", &[])?;
            Ok(id.first().map_or(Ok(""), |row| row.text(0))?.to_owned())
        })?;
        session.batch("COMMIT")?;
        Ok(Self { server, session: Some(session), id, commits: 0 })
    }

    /// The connection, a new one where it was lost.
    fn session(&mut self) -> Result<Session, Error> {
        if let Some(session) = self.session.take().filter(|session| !session.is_lost()) {
            return Ok(session);
        }
        self.server.connect(true).map_err(away)
    }

    /// A connection in a transaction that holds the lock.
    fn locked(&mut self, also: &str) -> Result<Session, Error> {
        for _ in 0..ATTEMPTS {
            let session = self.session()?;
            match session.batch(&begin(also)) {
                Ok(()) => return Ok(session),
                Err(_) if session.is_lost() => {}
                Err(error) => {
                    // Mostly the lock, which another process has held for too long.
                    if session.batch("ROLLBACK").is_ok() {
                        self.session = Some(session);
                    }
                    return Err(error);
                }
            }
        }
        Err(Error::Busy)
    }

    /// Does jobs in one transaction, all of them unless the connection is lost; gives what became of those it began.
    fn transaction(&mut self, group: &mut [Box<dyn Job>]) -> Vec<Result<(), Error>> {
        let count = group.len();
        let session = match self.locked("; SAVEPOINT job") {
            Ok(session) => session,
            Err(error) => return (0..count).map(|_| Err(error.again())).collect(),
        };
        let mut outcomes: Vec<Result<(), Error>> = Vec::with_capacity(count);
        for job in group {
            let done = catch_unwind(AssertUnwindSafe(|| job.run(&session)));
            // The panic hook has logged the cause.
            let done = done.unwrap_or(Err(Error::Closed));
            let next = match &done {
                Ok(()) => "RELEASE SAVEPOINT job; SAVEPOINT job",
                Err(_) => "ROLLBACK TO SAVEPOINT job",
            };
            let begun = if session.is_lost() { Err(Error::Busy) } else { session.batch(next) };
            outcomes.push(done);
            if let Err(error) = begun {
                // Without its savepoint nothing of the transaction can be kept.
                fail(&mut outcomes, &error);
                return outcomes;
            }
        }
        let committed = if outcomes.iter().any(Result::is_ok) {
            self.commit(session)
        } else {
            let ended = session.batch("ROLLBACK");
            self.session = ended.is_ok().then_some(session);
            Ok(())
        };
        if let Err(error) = committed {
            fail(&mut outcomes, &error);
        }
        outcomes
    }

    /// Commits, and finds out whether it was done where the answer does not tell.
    fn commit(&mut self, session: Session) -> Result<(), Error> {
        self.commits += 1;
        let sql = format!(
            "INSERT INTO store_writers VALUES ('{}', {}, extract(epoch FROM now())::bigint) \
             ON CONFLICT (id) DO UPDATE SET commits = excluded.commits, used = excluded.used; COMMIT",
            self.id, self.commits
        );
        let told = session.batch(&sql);
        let Err(error) = told else {
            self.session = Some(session);
            return Ok(());
        };
        // What is still open is ended, or ends with its connection.
        let ended = session.batch("ROLLBACK");
        self.session = ended.is_ok().then_some(session);
        match self.last_commit() {
            Ok(last) if last == self.commits => Ok(()),
            Ok(_) => Err(error),
            Err(_) => Err(Error::Unsure),
        }
    }

    /// The number of this writer's last commit that was done. The lock is had only when the old transaction has ended.
    fn last_commit(&mut self) -> Result<u64, Error> {
        let since = Instant::now();
        loop {
            let read = self.locked("").and_then(|session| {
                let sql = "SELECT commits FROM store_writers WHERE id = ?1";
                let rows = session.query(sql, &[self.id.as_str().into()])?;
                let last = rows.first().map_or(Ok(0), |row| row.integer(0))?;
                session.batch("ROLLBACK")?;
                self.session = Some(session);
                Ok(last.unsigned_abs())
            });
            match read {
                Err(Error::Busy | Error::Away) if since.elapsed() < SETTLING => {
                    std::thread::sleep(SETTLING_PAUSE)
                }
                other => return other,
            }
        }
    }
}

/// Every job that had succeeded has not.
fn fail(outcomes: &mut [Result<(), Error>], error: &Error) {
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
        *outcome = Err(error.again());
    }
}

/// Begins a transaction that is alone. Each statement sees what was committed before it, and the lock is had first, so
/// they all see the same.
pub(super) fn begin(also: &str) -> String {
    format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT pg_advisory_xact_lock({LOCK}){also}")
}

impl Database for Writer {
    fn write(&mut self, group: &mut [Box<dyn Job>]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(group.len());
        while outcomes.len() < group.len() {
            let begun = self.transaction(&mut group[outcomes.len()..]);
            outcomes.extend(begun);
        }
        outcomes
    }
}
