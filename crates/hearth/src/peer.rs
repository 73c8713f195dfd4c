//! A server seen from outside: an HTTP client for it, and its event streams as lines.
//!
//! What the lines say is its callers' business (`hearth chat`, `hearth bench load`).

use anyhow::bail;
use std::time::Duration;

/// Longest line of an event stream that is believed.
const LINE_MAX: usize = 16 << 20;

/// Whether an address is this machine's own.
fn is_local(url: &str) -> bool {
    let url = reqwest::Url::parse(url).ok();
    let host = url.as_ref().and_then(reqwest::Url::host_str).unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A client for the server at this address.
pub(crate) fn client(url: &str) -> reqwest::ClientBuilder {
    // Someone else may have set the process's provider first; that is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(5));
    // A proxy of the environment is on the way out of this machine, not to itself.
    if is_local(url) { client.no_proxy() } else { client }
}

/// A server's address without what follows it in OpenAI's base URLs.
pub(crate) fn base_url(url: &str) -> String {
    url.trim_end_matches('/').trim_end_matches("/v1").to_owned()
}

/// Cuts a byte stream into lines, whatever its pieces.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    start: usize,
}

impl Lines {
    pub fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.len() + bytes.len() > LINE_MAX {
            bail!("the server sent a line of more than {} MiB", LINE_MAX >> 20);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole line, without its end.
    pub fn next(&mut self) -> Option<String> {
        let rest = &self.bytes[self.start..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
        self.start += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_the_bytes_come_in() {
        let text = "data: {\"ä\":1}\r\n\r\ndata: [DONE]\n\n";
        for cut in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in [&text.as_bytes()[..cut], &text.as_bytes()[cut..]] {
                lines.push(piece).expect("short");
                while let Some(line) = lines.next() {
                    found.push(line);
                }
            }
            assert_eq!(found, ["data: {\"ä\":1}", "", "data: [DONE]", ""], "cut at {cut}");
        }
    }
}
