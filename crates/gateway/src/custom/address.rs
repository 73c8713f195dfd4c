//! Which addresses an account may name: `https`, and nothing that lies inside a private network.
//!
//! What counts as private is what the registries of special-purpose addresses say (RFC 6890 and its updates), and what
//! wraps such an address. A name is judged by what it resolves to when it is connected to, and here by its end alone.

use super::Reach;
use hyper::Uri;
use hyper::http::uri::Scheme;
use protocol::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Ends of names that belong to a machine or a local network (RFC 6761, RFC 6762, RFC 8375, RFC 9476).
const LOCAL_NAMES: &[&str] = &["alt", "home.arpa", "internal", "lan", "local", "localdomain", "localhost"];

/// Whether an address is one of the public network.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = a == 0
        || a == 10
        || a == 127
        || a >= 224
        || (a, b) == (169, 254)
        || (a, b) == (192, 168)
        || a == 172 && (16..32).contains(&b)
        || a == 100 && (64..128).contains(&b)
        || a == 198 && (18..20).contains(&b)
        || matches!((a, b, c), (192, 0, 0 | 2) | (192, 88, 99) | (198, 51, 100) | (203, 0, 113));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let s = address.segments();
    let embedded =
        |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match s {
        // IPv4 in other clothes: mapped, translated (RFC 6052), 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo and other protocol assignments, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, ..] => false,
        // Only this block is given out.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Whether an account may name this address.
///
/// # Errors
/// Says what is wrong with it.
pub(crate) fn check(url: &str, reach: Reach) -> Result<(), Error> {
    let wrong = |why: &str| Err(Error::invalid("base_url", format!("Invalid value for 'base_url': {why}")));
    let Ok(uri) = url.parse::<Uri>() else {
        return wrong("expected an address such as https://api.example.com");
    };
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
        return wrong("expected an address such as https://api.example.com");
    };
    if authority.as_str().contains('@') {
        return wrong("a user or a password may not stand in it");
    }
    // What follows the last colon behind the host is a port, which the parser takes whatever its number is.
    let behind = authority.as_str().rsplit(']').next().unwrap_or_default();
    if behind.contains(':') && authority.port_u16().is_none_or(|port| port == 0) {
        return wrong("its port is none; ports are 1 to 65535");
    }
    if uri.query().is_some() || url.contains('#') {
        return wrong("nothing may follow its path");
    }
    if *scheme != Scheme::HTTPS && (*scheme != Scheme::HTTP || reach == Reach::Public) {
        return wrong("expected https");
    }
    let host = uri.host().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = bare.trim_end_matches('.').to_ascii_lowercase();
    let is_local = match bare.parse::<IpAddr>() {
        Ok(address) => !is_public(address),
        Err(_) => {
            let ends = |end: &&str| {
                name.strip_suffix(*end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            // Systems read `127.1`, `2130706433` and `0x7f.1` as addresses too.
            let last = name.rsplit('.').next().unwrap_or_default();
            !name.contains('.')
                || LOCAL_NAMES.iter().any(ends)
                || last.starts_with(|c: char| c.is_ascii_digit())
        }
    };
    if is_local && reach == Reach::Public {
        return wrong("it points into a private network, which this server does not allow");
    }
    Ok(())
}
