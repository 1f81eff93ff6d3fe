//! The address of a task: host and port, as text. Must not resolve names or connect.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a task is reached: `host:port`, an IPv6 host in brackets.
///
/// Hosts are kept in lower case and IPv6 in its short form, so equal addresses compare equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Builds an address from its parts. An IPv6 host is given without brackets.
    pub fn new(host: &str, port: u16) -> Result<Address, AddressError> {
        if port == 0 {
            return Err(AddressError::PortZero);
        }
        let host = match host.parse::<Ipv6Addr>() {
            Ok(ip) => ip.to_string(),
            Err(_) => {
                check_name(host)?;
                host.to_ascii_lowercase()
            }
        };
        Ok(Address { host, port })
    }

    /// The host name or IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the text names this machine only: `localhost`, `127.x.x.x` or `::1`.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
            || self.host.parse::<Ipv6Addr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if text.contains(|character: char| character.is_whitespace()) {
            return Err(AddressError::Space);
        }
        if let Some((scheme, rest)) = text.split_once("://") {
            return Err(AddressError::Scheme {
                scheme: scheme.to_owned(),
                rest: rest.trim_end_matches('/').to_owned(),
            });
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(bracketed) => {
                let (host, rest) = bracketed
                    .split_once(']')
                    .filter(|(host, _)| host.parse::<Ipv6Addr>().is_ok())
                    .ok_or(AddressError::Brackets)?;
                let port = rest.strip_prefix(':').ok_or(AddressError::NoPort)?;
                (host, port)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
                if host.contains(':') {
                    return Err(AddressError::Colons { bare_ipv6: text.parse::<Ipv6Addr>().is_ok() });
                }
                (host, port)
            }
        };
        Address::new(host, parse_port(port)?)
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Address, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.to_string()
    }
}

/// Why a text is not an address. Worded to follow the text itself: `"a": no port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing at all, as between two commas.
    #[error("empty, expected host:port")]
    Empty,
    /// White space, mostly after a comma.
    #[error("contains white space, expected host:port")]
    Space,
    /// The text is a URL.
    #[error("starts with a scheme, {scheme:?}, expected plain host:port")]
    Scheme {
        /// The part before `://`.
        scheme: String,
        /// The part after it.
        rest: String,
    },
    /// A host without a port.
    #[error("no port, expected host:port")]
    NoPort,
    /// A port without a host.
    #[error("no host before the port, expected host:port")]
    NoHost,
    /// The port is not a number in the valid range.
    #[error("port {port:?} is not a number from 1 to 65535")]
    Port {
        /// The text after the last colon.
        port: String,
    },
    /// Port 0, which others cannot connect to.
    #[error("port 0 cannot be reached by others, expected 1 to 65535")]
    PortZero,
    /// An opening bracket not followed by an IPv6 address and a closing one.
    #[error("brackets without an IPv6 address in them, expected [address]:port")]
    Brackets,
    /// More than one colon outside brackets.
    #[error("more than one colon, expected host:port")]
    Colons {
        /// Whether the whole text is an IPv6 address.
        bare_ipv6: bool,
    },
    /// The host can be neither a name nor an IP address.
    #[error("host {host:?} is neither a host name nor an IP address")]
    Host {
        /// The host as given.
        host: String,
    },
}

impl AddressError {
    /// What the user can do about it, if that goes beyond the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            AddressError::Empty => Some("remove the extra comma, or add the missing host:port".to_owned()),
            AddressError::Space => Some("separate entries by commas only, as in a:2222,b:2222".to_owned()),
            AddressError::Scheme { rest, .. } => Some(format!("write {rest}")),
            AddressError::NoPort => Some("add a port, as in a:2222".to_owned()),
            AddressError::Brackets | AddressError::Colons { bare_ipv6: true } => {
                Some("write an IPv6 address and its port as [::1]:2222".to_owned())
            }
            AddressError::Colons { bare_ipv6: false } => {
                Some("separate entries by commas, and put IPv6 addresses in brackets".to_owned())
            }
            AddressError::NoHost | AddressError::Port { .. } | AddressError::PortZero | AddressError::Host { .. } => {
                None
            }
        }
    }
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    if text.is_empty() {
        return Err(AddressError::NoPort);
    }
    // u16's own parser would also accept "+2222".
    let port = if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None };
    port.ok_or_else(|| AddressError::Port { port: text.to_owned() })
}

/// Checks a host name by the rules of DNS, Docker and Kubernetes (so underscores are allowed), or an IPv4 address. A
/// name whose last label is a number can only be a mistyped IPv4 address.
fn check_name(host: &str) -> Result<(), AddressError> {
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    let labels = || host.strip_suffix('.').unwrap_or(host).split('.');
    let well_formed = labels().all(|label| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    });
    let ends_in_number = labels().next_back().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if well_formed && (!ends_in_number || host.parse::<Ipv4Addr>().is_ok()) {
        Ok(())
    } else {
        Err(AddressError::Host { host: host.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(text: &str) -> AddressError {
        text.parse::<Address>().unwrap_err()
    }

    #[test]
    fn host_and_port_are_taken_apart() {
        let address: Address = "worker-0.default.svc:2222".parse().unwrap();
        assert_eq!((address.host(), address.port()), ("worker-0.default.svc", 2222));
    }

    #[test]
    fn an_ipv6_host_loses_its_brackets_and_gets_them_back() {
        let address: Address = "[::1]:2222".parse().unwrap();
        assert_eq!(address.host(), "::1");
        assert_eq!(address.to_string(), "[::1]:2222");
    }

    #[test]
    fn spellings_of_one_address_are_equal() {
        assert_eq!("A:1".parse::<Address>(), "a:1".parse());
        assert_eq!("[0:0::1]:1".parse::<Address>(), "[::1]:1".parse());
    }

    #[test]
    fn each_malformed_address_is_refused_for_its_own_reason() {
        let port = |port: &str| AddressError::Port { port: port.into() };
        let host = |host: &str| AddressError::Host { host: host.into() };
        for (text, expected) in [
            ("", AddressError::Empty),
            (" a:2222", AddressError::Space),
            ("a", AddressError::NoPort),
            ("a:", AddressError::NoPort),
            ("[::1]", AddressError::NoPort),
            (":2222", AddressError::NoHost),
            ("a:0", AddressError::PortZero),
            ("a:65536", port("65536")),
            ("a:+22", port("+22")),
            ("a:2222/", port("2222/")),
            ("[a]:2222", AddressError::Brackets),
            ("[::1:2222", AddressError::Brackets),
            ("::1", AddressError::Colons { bare_ipv6: true }),
            ("a:1;b:2", AddressError::Colons { bare_ipv6: false }),
            ("10.0.0.300:1", host("10.0.0.300")),
            ("10.0.0:1", host("10.0.0")),
            ("a..b:1", host("a..b")),
            ("a@b:1", host("a@b")),
        ] {
            assert_eq!(refusal(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_scheme_is_refused_with_the_address_to_write_instead() {
        let error = refusal("grpc://a:2222/");
        assert_eq!(error.to_string(), "starts with a scheme, \"grpc\", expected plain host:port");
        assert_eq!(error.hint().unwrap(), "write a:2222");
    }

    #[test]
    fn only_this_machines_own_names_are_loopback() {
        let loopback = |text: &str| text.parse::<Address>().unwrap().is_loopback();
        assert!(loopback("localhost:1") && loopback("127.3.0.1:1") && loopback("[::1]:1"));
        assert!(loopback("[::ffff:127.0.0.1]:1"));
        assert!(!loopback("10.0.0.1:1") && !loopback("localhost.com:1") && !loopback("[::2]:1"));
    }

    #[test]
    fn an_address_is_a_string_in_json_and_is_checked_there() {
        let address: Address = serde_json::from_str("\"a:2222\"").unwrap();
        assert_eq!(serde_json::to_string(&address).unwrap(), "\"a:2222\"");
        assert!(serde_json::from_str::<Address>("\"a\"").is_err());
    }

    proptest! {
        #[test]
        fn an_address_shown_is_read_back_the_same(
            host in prop_oneof![
                "[a-z][a-z0-9_-]{0,8}(\\.[a-z]{1,5}){0,3}\\.?",
                any::<Ipv4Addr>().prop_map(|ip| ip.to_string()),
                any::<Ipv6Addr>().prop_map(|ip| ip.to_string()),
            ],
            port in 1..=u16::MAX,
        ) {
            let address = Address::new(&host, port).unwrap();
            prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
        }

        #[test]
        fn no_text_panics_and_what_is_accepted_round_trips(text in "[\\[\\]a-z0-9:./ é]{0,16}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
