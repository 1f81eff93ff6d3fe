//! Names that Kubernetes accepts. How long a name may be depends on what is derived from it: see `limits`.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// The longest DNS label.
pub(crate) const LABEL: usize = 63;
const SUBDOMAIN: usize = 253;

/// The name of a run: a DNS label of RFC 1035, since Services are named after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Name, Error> {
        let bad = |problem| Error::Name { name: text.to_owned(), problem };
        check_label(text).map_err(bad)?;
        match text.starts_with(|character: char| character.is_ascii_lowercase()) {
            true => Ok(Name(text.to_owned())),
            false => Err(bad("does not begin with a letter")),
        }
    }
}

/// A namespace: a DNS label of RFC 1123, which may begin with a digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(String);

impl Namespace {
    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Namespace, Error> {
        check_label(text).map_err(|problem| Error::Namespace { namespace: text.to_owned(), problem })?;
        Ok(Namespace(text.to_owned()))
    }
}

/// Checks the name of an existing object, such as a claim: labels separated by dots.
pub(crate) fn check_object(what: &'static str, name: &str) -> Result<(), Error> {
    let bad = |problem| Error::Object { what, name: name.to_owned(), problem };
    if name.len() > SUBDOMAIN {
        return Err(bad("longer than 253 characters"));
    }
    name.split('.').try_for_each(|label| check_label(label).map_err(bad))
}

/// Checks a name that is also used as the value of a label.
pub(crate) fn check_label_value(what: &'static str, name: &str) -> Result<(), Error> {
    match name.len() > LABEL {
        true => Err(Error::Object { what, name: name.to_owned(), problem: "longer than 63 characters" }),
        false => check_object(what, name),
    }
}

fn check_label(text: &str) -> Result<(), &'static str> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() {
        return Err("empty");
    }
    if text.len() > LABEL {
        return Err("longer than 63 characters");
    }
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("contains upper-case letters");
    }
    if !text.bytes().all(is_inner) {
        return Err("contains characters other than a-z, 0-9 and -");
    }
    if text.starts_with('-') || text.ends_with('-') {
        return Err("begins or ends with a hyphen");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_with_a_letter() {
        assert!("digits-1".parse::<Name>().is_ok());
        assert_eq!("1st".parse::<Name>().unwrap_err().to_string(), "name \"1st\": does not begin with a letter");
    }

    #[test]
    fn a_namespace_may_begin_with_a_digit() {
        assert!("1st".parse::<Namespace>().is_ok());
    }

    #[test]
    fn what_is_no_dns_label_is_refused_with_the_reason() {
        for (text, problem) in [
            ("", "empty"),
            ("Team", "contains upper-case letters"),
            ("a_b", "contains characters other than a-z, 0-9 and -"),
            ("a.b", "contains characters other than a-z, 0-9 and -"),
            ("a-", "begins or ends with a hyphen"),
            (&"a".repeat(64), "longer than 63 characters"),
        ] {
            let error = text.parse::<Namespace>().unwrap_err();
            assert_eq!(error, Error::Namespace { namespace: text.to_owned(), problem });
        }
    }

    #[test]
    fn a_name_that_becomes_a_label_is_as_short_as_one() {
        let name = format!("{}.{}", "a".repeat(40), "b".repeat(23));
        assert!(check_object("queue", &name).is_ok() && check_label_value("queue", &name).is_err());
        assert!(check_label_value("queue", &name[1..]).is_ok());
    }

    #[test]
    fn the_names_of_other_objects_may_have_dots() {
        assert!(check_object("claim", "runs.team-a").is_ok());
        assert!(check_object("claim", "runs..a").is_err());
    }
}
