//! Pulls against servers and pips with behaviour, all on this machine.

mod hub;
mod plain;
mod server;
mod wheels;

use super::*;
use crate::catalog::Catalog;
use server::{Answer, Asked, Server};
use tempfile::TempDir;

/// Bytes that are not the same twice, so that a wrong offset shows.
fn content(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| base::rng::mix(at) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A folder, a catalog and a puller.
struct World {
    dir: TempDir,
    hub: Hub,
    python: PathBuf,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        Self { dir, hub: Hub::new(Some("http://127.0.0.1:9".into()), None), python: "no-such-python".into() }
    }

    fn with_hub(endpoint: String, token: Option<&str>) -> Self {
        Self { hub: Hub::new(Some(endpoint), token.map(str::to_owned)), ..Self::new() }
    }

    /// A model of one file `m.gguf`.
    fn entry(&self, facts: &str, sources: &[String]) -> Entry {
        let text = format!(
            "[[model]]\nid = \"m\"\n[[model.file]]\nname = \"m.gguf\"\n{facts}\nsources = {sources:?}"
        );
        Catalog::parse(&text, "test").expect("a catalog").find("m").expect("m").clone()
    }

    fn place(&self) -> Place {
        Place::in_data_dir(self.dir.path(), "m")
    }

    fn puller(&self, tries: u32) -> Puller {
        let retry = Retry { tries, pause: Duration::ZERO };
        Puller::new(self.hub.clone(), self.python.clone(), retry).expect("a client")
    }

    async fn pull(&self, entry: &Entry) -> Result<Installed, PullError> {
        self.puller(3).pull(entry, &self.place(), &mut Silent).await
    }

    #[track_caller]
    fn assert_nothing_in_place(&self) {
        assert_eq!(self.place().installed().expect("readable"), None);
        assert!(!self.place().file("m.gguf").exists());
    }
}

fn facts(bytes: &[u8]) -> String {
    format!("size = {}\nsha256 = {:?}", bytes.len(), sha256(bytes))
}
