//! The index that Kubernetes gives each pod of an Indexed Job. It counts within one Job, so it does not identify the
//! job (ps or worker) that the pod belongs to.

use crate::cluster::ClusterError;

pub(super) const VARIABLE: &str = "JOB_COMPLETION_INDEX";

pub(super) fn parse(text: &str) -> Result<u32, ClusterError> {
    text.parse().map_err(|_| ClusterError::JobIndex { value: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_a_whole_number() {
        assert_eq!(parse("12"), Ok(12));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        let error = parse("-1").unwrap_err();
        assert_eq!(error.to_string(), "JOB_COMPLETION_INDEX is \"-1\", expected a whole number from 0");
    }
}
