//! Where a Postgres database is: a URL, checked, that shows its password to nobody.
//!
//! The connection is encrypted and the server's certificate checked, unless the server is on this machine (a socket or a
//! loopback address) or the URL says `sslmode=disable`. Half measures (`prefer`, `allow`, encrypted but unchecked) are
//! not offered.

use crate::Error;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Time for one attempt to connect to one host.
const CONNECT: Duration = Duration::from_secs(5);

/// Silence after which a host is taken to be gone.
const SILENCE: Duration = Duration::from_secs(15);

const FORM: &str =
    "write postgres://USER:PASSWORD@HOST/DATABASE, with special characters of the password as %XX";

/// The address of a Postgres database, as `postgres://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE`.
///
/// Options are those of `tokio_postgres` and two more: `sslmode` (`disable` or `verify-full`; `require` is the same) and
/// `sslrootcert`, a PEM file of certificates that are trusted besides the system's.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    url: String,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let address = Self { url: url.to_owned() };
        address.read()?;
        Ok(address)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(Read { config, .. }) = self.read() else { return f.write_str("postgres") };
        let hosts: Vec<String> = config.get_hosts().iter().map(host_name).collect();
        let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
        write!(f, "postgres at {}", hosts.join(","))?;
        if !ports.is_empty() {
            write!(f, ", port {}", ports.join(","))?;
        }
        config.get_dbname().map_or(Ok(()), |name| write!(f, ", database {name}"))
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

/// What a URL says.
struct Read {
    config: Config,
    encrypted: bool,
    roots: Option<PathBuf>,
}

impl Address {
    fn read(&self) -> Result<Read, Error> {
        let fault = |why: &str| Error::Address(format!("{why}; {FORM}"));
        if !["postgres://", "postgresql://"].iter().any(|scheme| self.url.starts_with(scheme)) {
            return Err(fault("it does not begin with postgres://"));
        }
        let (base, options) = self.url.split_once('?').unwrap_or((&self.url, ""));
        if options.contains('@') {
            return Err(fault("there is an @ after a ?"));
        }
        let (mut mode, mut roots, mut others) = (None, None, Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", path)) => roots = Some(PathBuf::from(path)),
                _ => others.push(option),
            }
        }
        let mut config = format!("{base}?{}", others.join("&"))
            .parse::<Config>()
            .map_err(|error| fault(&std::error::Error::source(&error).unwrap_or(&error).to_string()))?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(fault("it names no host"));
        }
        let encrypted = match mode {
            None => !is_here(&config),
            Some("disable") => false,
            Some("require" | "verify-full") => true,
            Some(_) => return Err(Error::Address("sslmode is `disable` or `verify-full`".to_owned())),
        };
        config.ssl_mode(if encrypted { SslMode::Require } else { SslMode::Disable });
        // A standby cannot be written to.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config.connect_timeout(config.get_connect_timeout().copied().unwrap_or(CONNECT));
        config.tcp_user_timeout(config.get_tcp_user_timeout().copied().unwrap_or(SILENCE));
        config.keepalives_idle(SILENCE);
        if config.get_application_name().is_none() {
            config.application_name("hearth");
        }
        Ok(Read { config, encrypted, roots })
    }

    /// How to connect, and by which encryption if any.
    pub(super) fn connector(&self) -> Result<(Config, Option<MakeRustlsConnect>), Error> {
        let Read { config, encrypted, roots } = self.read()?;
        let tls = if encrypted { Some(tls(roots)?) } else { None };
        Ok((config, tls))
    }
}

fn is_here(config: &Config) -> bool {
    let loopback =
        |name: &str| name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let hosts = config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => loopback(name),
        Host::Unix(_) => true,
    });
    hosts && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

fn tls(roots: Option<PathBuf>) -> Result<MakeRustlsConnect, Error> {
    let unusable = |error: rustls::Error| Error::Address(format!("no encryption: {error}"));
    let mut trusted = Vec::new();
    if let Some(path) = roots {
        let unreadable = |error: rustls::pki_types::pem::Error| {
            Error::Address(format!("sslrootcert {}: {error}", path.display()))
        };
        for certificate in CertificateDer::pem_file_iter(&path).map_err(unreadable)? {
            trusted.push(certificate.map_err(unreadable)?);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(trusted, Arc::clone(&provider));
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier.map_err(unusable)?))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_holds_the_password() {
        for url in [
            "postgres://me:s3cret@db.example/hearth",
            "postgres://me:s3cret@127.0.0.1:99999/hearth",
            "postgres://me:s3cret?sslmode=s3cret@db/hearth",
            "postgres://me:%zzs3cret@db/hearth",
            "postgres://me:s3cret@db/hearth?sslmode=prefer",
            "postgres://me:s3cret@db/hearth?nonsense=1",
            "postgres://me:s3cret@/hearth",
            "mysql://me:s3cret@db/hearth",
            "s3cret",
        ] {
            let address = Address { url: url.to_owned() };
            let mut told = format!("{address} {address:?} {:?}", url.parse::<Address>());
            if let Err(error) = url.parse::<Address>() {
                told += &error.to_string();
            }
            assert!(!told.contains("s3cret"), "{told}");
        }
    }

    #[test]
    fn a_wrong_address_says_what_is_wrong_and_how_it_is_written() {
        for (url, expected) in [
            ("mysql://a@b/c", "does not begin with postgres://"),
            ("postgres://a@/c", "names no host"),
            ("postgres://a@b:port/c", "port"),
            ("postgres://a@b/c?nonsense=1", "nonsense"),
            ("postgres://a:p?x@b/c", "%XX"),
            ("postgres://a@b/c?sslmode=prefer", "`disable` or `verify-full`"),
        ] {
            let error = url.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    #[test]
    fn the_network_is_encrypted_unless_told_otherwise_and_this_machine_is_not() {
        let encrypted = |url: &str| url.parse::<Address>().unwrap().read().unwrap().encrypted;
        for url in [
            "postgres://a@db.example/c",
            "postgres://a@10.0.0.1/c",
            "postgres://a@localhost,db.example/c",
            "postgres://a@localhost/c?sslmode=verify-full",
            "postgresql://a@localhost/c?sslmode=require",
        ] {
            assert!(encrypted(url), "{url}");
        }
        for url in [
            "postgres://a@localhost/c",
            "postgres://a@[::1]:5433/c",
            "postgres:///c?host=/run/postgresql",
            "postgres://a@db.example/c?sslmode=disable",
        ] {
            assert!(!encrypted(url), "{url}");
        }
    }
}
