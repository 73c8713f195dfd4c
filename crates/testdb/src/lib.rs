//! A Postgres server of its own for tests: made in a temporary folder, reached by a socket there, and gone with it.
//!
//! The program comes from the system (Debian: `postgresql`), is run as `nobody` where the tests run as root (it refuses to
//! be root), and hangs on a shell that ends it and removes its folder when the test's process ends, however that ends.
//! Its texts are ordered as English, not by their bytes, so that a test notices who relies on the order. Not here: what
//! is stored.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Debian's `nobody` and `nogroup`.
const NOBODY: u32 = 65534;

/// Of an encrypted server.
const CERTIFICATE: &[u8] = include_bytes!("../tls/server.pem");
const KEY: &[u8] = include_bytes!("../tls/server.key");

/// What watches the server. `kill` ends it as a crash would, `start` starts it again, the end of the input ends all.
const WATCH: &str = r#"
trap '' INT TERM HUP
start() {
    # shellcheck disable=SC2086
    "$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= -c fsync=off -c shared_buffers=16MB -c max_connections=64 \
        -c log_min_messages=log -c lc_messages=C $3 </dev/null &
    server=$!
}
start "$@"
while read -r word; do
    case $word in
    kill)
        backends=$(cat "/proc/$server/task/$server/children" 2>/dev/null)
        # shellcheck disable=SC2086
        kill -KILL "$server" $backends 2>/dev/null
        wait "$server" 2>/dev/null
        echo killed >&2 ;;
    start) start "$@" ;;
    esac
done
kill -QUIT "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$2"
"#;

/// A running server.
pub struct Server {
    programs: PathBuf,
    folder: PathBuf,
    /// Where it is not the usual one.
    port: Option<u16>,
    databases: AtomicU32,
    watch: Mutex<Watch>,
}

struct Watch {
    shell: Child,
    /// Taken when the server is dropped.
    input: Option<ChildStdin>,
    log: Receiver<String>,
}

impl Server {
    /// Starts a server; none where the system has no Postgres, which is told by the test's name and in CI is a failure.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(test: &str) -> Option<Self> {
        let programs = Self::programs(test)?;
        Some(Self::start_in(programs, None).expect("the server can be started"))
    }

    /// Starts a server that also listens on a port of `localhost` and takes encrypted connections there;
    /// its certificate is signed by [`Server::authority`]. See [`Server::start`].
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_encrypted(test: &str) -> Option<Self> {
        let programs = Self::programs(test)?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.expect("a port is free").port();
        Some(Self::start_in(programs, Some(port)).expect("the server can be started"))
    }

    /// The certificate that signed that of an encrypted server.
    #[must_use]
    pub fn authority() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tls/ca.pem")
    }

    /// The server that the tests of this process share as long as one of them holds it; see [`Server::start`].
    #[must_use]
    pub fn shared(test: &str) -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start(test)?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    fn programs(test: &str) -> Option<PathBuf> {
        let programs = programs();
        if programs.is_none() {
            assert!(std::env::var_os("CI").is_none(), "{test} needs Postgres (Debian: postgresql)");
            skipped(test);
        }
        programs
    }

    fn start_in(programs: PathBuf, port: Option<u16>) -> io::Result<Self> {
        let encrypted = |port| format!("-c listen_addresses=localhost -c port={port} -c ssl=on");
        let options = port.map_or_else(String::new, encrypted);
        let folder = tempfile::Builder::new().prefix("hearth-pg-").tempdir()?.keep();
        let root = fs::metadata(&folder)?.uid() == 0;
        if root {
            chown(&folder, Some(NOBODY), Some(NOBODY))?;
        }
        let run = |program: &Path| {
            let mut command = Command::new(program);
            command.current_dir("/").env("LC_ALL", "C.UTF-8");
            if root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        let made = run(&programs.join("initdb"))
            .args(["--auth=trust", "--no-sync", "--username=hearth", "--encoding=UTF8", "--locale=C.UTF-8"])
            .args(["--locale-provider=icu", "--icu-locale=en", "--pgdata"])
            .arg(folder.join("data"))
            .output()?;
        if !made.status.success() {
            let _ = fs::remove_dir_all(&folder);
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        for (file, text) in [("server.crt", CERTIFICATE), ("server.key", KEY)] {
            // The name and the rights that the server wants.
            let path = folder.join("data").join(file);
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(text)?;
            if root {
                chown(&path, Some(NOBODY), Some(NOBODY))?;
            }
        }
        let mut shell = run(Path::new("/bin/sh"))
            .args(["-c", WATCH, "sh"])
            .args([&programs, &folder])
            .arg(&options)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let input = shell.stdin.take();
        let said = BufReader::new(shell.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                // Read to the end, so that the server never waits for a reader.
                let _ = sender.send(line);
            }
        });
        let watch = Mutex::new(Watch { shell, input, log });
        let server = Self { programs, folder, port, databases: AtomicU32::new(0), watch };
        server.watch().started()?;
        Ok(server)
    }

    fn watch(&self) -> std::sync::MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an empty database and gives its URL, which has a `?` to add to.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        match self.port {
            None => format!("postgres://hearth@/{name}?host={}", self.folder.display()),
            Some(port) => format!("postgres://hearth@localhost:{port}/{name}?"),
        }
    }

    /// Says something to a database by its own client, and gives what it answers.
    ///
    /// # Panics
    /// When it fails.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut client = Command::new(self.programs.join("psql"));
        if let Some(port) = self.port {
            client.args(["-p", &port.to_string()]);
        }
        client.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "hearth",
            "-d",
            database,
            "-c",
            sql,
        ]);
        let said = client.arg("-h").arg(&self.folder).output().expect("psql can be run");
        assert!(said.status.success(), "{sql}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).trim().to_owned()
    }

    /// Kills it and all its processes.
    ///
    /// # Panics
    /// When that fails.
    pub fn kill(&self) {
        let mut watch = self.watch();
        watch.say("kill").expect("the shell listens");
        watch.wait_for(&["killed"]).expect("the server is killed");
    }

    /// Starts it again after [`Server::kill`], on the same data.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_again(&self) {
        let mut watch = self.watch();
        watch.say("start").expect("the shell listens");
        watch.started().expect("the server starts again");
    }
}

impl Watch {
    fn say(&mut self, word: &str) -> io::Result<()> {
        writeln!(self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?, "{word}")
    }

    fn wait_for(&self, texts: &[&str]) -> io::Result<String> {
        let mut log = Vec::new();
        for line in &self.log {
            if texts.iter().any(|text| line.contains(text)) {
                return Ok(line);
            }
            log.push(line);
        }
        Err(io::Error::other(log.join("\n")))
    }

    fn started(&mut self) -> io::Result<()> {
        // After a kill its last processes may still be going, and hold what a new one wants for itself.
        let held = ["pre-existing shared memory block", "lock file \"postmaster.pid\" already exists"];
        while !self.wait_for(&["ready to accept connections", held[0], held[1]])?.contains("ready") {
            self.say("start")?;
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.shell.wait();
    }
}

fn skipped(test: &str) {
    let _ = writeln!(io::stderr(), "skipped: {test} (no Postgres; Debian: postgresql)");
}

/// The folder of the newest server's programs: Debian's, which are in no `PATH`, else where `initdb` is found.
fn programs() -> Option<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = debian.map(|entry| entry.path()).max_by_key(|path| version(path));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = newest.map(|path| path.join("bin")).into_iter().chain(std::env::split_paths(&path));
    folders
        .into_iter()
        .find(|folder| ["initdb", "postgres", "psql"].iter().all(|program| folder.join(program).is_file()))
}
