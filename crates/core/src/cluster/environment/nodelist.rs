//! Expands Slurm's list of nodes: `node[01-03,07],gpu1` is node01, node02, node03, node07 and gpu1. Several brackets in
//! one name multiply, the rightmost varying fastest. A name may be any text; hosts are not checked here.

/// Lists of more nodes than this are refused before they are expanded.
pub(super) const MAX_NODES: usize = 1 << 16;

/// Why a text is not a list of nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeListError {
    /// No name at all, or nothing between two commas.
    #[error("a name is empty")]
    EmptyName,
    /// A bracket is unbalanced or nested.
    #[error("the brackets do not match")]
    Brackets,
    /// A range is neither a number nor two ascending numbers.
    #[error("{range:?} is not a range")]
    Range {
        /// The range as given.
        range: String,
    },
    /// More nodes than any cluster has.
    #[error("more than {MAX_NODES} nodes")]
    TooMany,
}

/// The names of all nodes, in order.
pub(super) fn expand(text: &str) -> Result<Vec<String>, NodeListError> {
    let mut nodes = Vec::new();
    for name in split_outside_brackets(text.trim())? {
        expand_name(name, &mut nodes)?;
    }
    Ok(nodes)
}

/// Splits at commas that are not within brackets.
fn split_outside_brackets(text: &str) -> Result<Vec<&str>, NodeListError> {
    let (mut names, mut start, mut open) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            '[' if open => return Err(NodeListError::Brackets),
            '[' => open = true,
            ']' if !open => return Err(NodeListError::Brackets),
            ']' => open = false,
            ',' if !open => {
                names.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if open {
        return Err(NodeListError::Brackets);
    }
    names.push(&text[start..]);
    Ok(names)
}

fn expand_name(name: &str, nodes: &mut Vec<String>) -> Result<(), NodeListError> {
    if name.is_empty() {
        return Err(NodeListError::EmptyName);
    }
    let room = MAX_NODES - nodes.len();
    let mut expanded = vec![String::new()];
    let mut rest = name;
    while let Some((before, bracketed)) = rest.split_once('[') {
        let (ranges, after) = bracketed.split_once(']').ok_or(NodeListError::Brackets)?;
        let numbers = numbers(ranges, room)?;
        if expanded.len().saturating_mul(numbers.len()) > room {
            return Err(NodeListError::TooMany);
        }
        expanded = expanded
            .iter()
            .flat_map(|start| numbers.iter().map(move |number| format!("{start}{before}{number}")))
            .collect();
        rest = after;
    }
    if expanded.len() > room {
        return Err(NodeListError::TooMany);
    }
    nodes.extend(expanded.into_iter().map(|start| start + rest));
    Ok(())
}

/// The largest number of digits in a number, leading zeros included.
const MAX_DIGITS: usize = 20;

/// Expands `01-03,07` to numbers, as text that keeps leading zeros.
fn numbers(ranges: &str, room: usize) -> Result<Vec<String>, NodeListError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let bad = || NodeListError::Range { range: range.to_owned() };
        let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<u64>().map_err(|_| bad()),
            false => Err(bad()),
        };
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(low)?, number(high)?);
        if first > last || low.len() > MAX_DIGITS {
            return Err(bad());
        }
        if last - first >= (room - numbers.len().min(room)) as u64 {
            return Err(NodeListError::TooMany);
        }
        let width = low.len();
        numbers.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str) -> String {
        expand(text).unwrap().join(" ")
    }

    #[test]
    fn a_name_without_brackets_is_itself() {
        assert_eq!(expanded("gpu1"), "gpu1");
        assert_eq!(expanded("a,b"), "a b");
    }

    #[test]
    fn absurd_numbers_are_refused() {
        let zeros = "0".repeat(70_000);
        assert!(expand(&format!("n[{zeros}-1]")).is_err());
    }

    #[test]
    fn ranges_and_single_numbers_are_expanded_in_order() {
        assert_eq!(expanded("node[01-03,07],gpu1"), "node01 node02 node03 node07 gpu1");
    }

    #[test]
    fn numbers_keep_their_leading_zeros_and_no_others() {
        assert_eq!(expanded("n[8-11]"), "n8 n9 n10 n11");
        assert_eq!(expanded("n[008-011]"), "n008 n009 n010 n011");
    }

    #[test]
    fn a_suffix_follows_the_number() {
        assert_eq!(expanded("rack[1-2]-ib"), "rack1-ib rack2-ib");
    }

    #[test]
    fn several_brackets_multiply_and_the_rightmost_counts_fastest() {
        assert_eq!(expanded("r[1-2]n[1-2]"), "r1n1 r1n2 r2n1 r2n2");
    }

    #[test]
    fn malformed_lists_are_refused() {
        let range = |range: &str| NodeListError::Range { range: range.to_owned() };
        for (text, error) in [
            ("", NodeListError::EmptyName),
            ("a,,b", NodeListError::EmptyName),
            ("n[1-2", NodeListError::Brackets),
            ("n1-2]", NodeListError::Brackets),
            ("n[[1]]", NodeListError::Brackets),
            ("n[]", range("")),
            ("n[2-1]", range("2-1")),
            ("n[a-b]", range("a-b")),
            ("n[+1]", range("+1")),
            ("n[1-2-3]", range("1-2-3")),
        ] {
            assert_eq!(expand(text), Err(error), "{text}");
        }
    }

    #[test]
    fn an_absurd_list_is_refused_before_it_is_expanded() {
        assert_eq!(expand("n[0-18446744073709551615]"), Err(NodeListError::TooMany));
        assert_eq!(expand("n[0-65535],m"), Err(NodeListError::TooMany));
        assert_eq!(expand("a[0-999]b[0-999]c[0-999]"), Err(NodeListError::TooMany));
        assert_eq!(expand("n[0-65535]").unwrap().len(), MAX_NODES);
    }

    proptest! {
        #[test]
        fn a_range_expands_to_as_many_names_as_it_counts(
            prefix in "[a-z]{1,6}",
            first in 0u64..2000,
            more in 0u64..50,
            width in 1usize..6,
            suffix in "[a-z]{0,3}",
        ) {
            let list = format!("{prefix}[{first:0width$}-{}]{suffix}", first + more);
            let nodes = expand(&list).unwrap();
            let expected: Vec<String> =
                (first..=first + more).map(|number| format!("{prefix}{number:0width$}{suffix}")).collect();
            prop_assert_eq!(nodes, expected);
        }

        #[test]
        fn lists_joined_by_a_comma_expand_one_after_the_other(
            lists in prop::collection::vec("[a-z]{1,3}(\\[[1-9],[1-9]\\])?", 1..6),
        ) {
            let apart: Vec<String> = lists.iter().flat_map(|list| expand(list).unwrap()).collect();
            prop_assert_eq!(expand(&lists.join(",")).unwrap(), apart);
        }

        #[test]
        fn names_without_brackets_come_back_as_they_are(names in prop::collection::vec("[a-z][a-z0-9.-]{0,8}", 1..20)) {
            prop_assert_eq!(expand(&names.join(",")).unwrap(), names);
        }

        #[test]
        fn no_text_panics(text in "[a-c0-9,\\[\\]é-]{0,40}") {
            let _ = expand(&text);
        }
    }
}
