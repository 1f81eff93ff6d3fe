//! Every alert in `deploy/monitoring` has a test case in which it fires and one in which it does not.
//! `scripts/metrics-tests` runs them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::{documents, text};

fn read(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/monitoring").join(file);
    let written = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    documents(&written).remove(0)
}

fn items<'a>(value: &'a Value, pointer: &str) -> Vec<&'a Value> {
    value.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("no list at {pointer}")).iter().collect()
}

#[test]
fn every_alert_is_tested_both_firing_and_quiet() {
    let (rules, tests) = (read("alerts.yaml"), read("alerts.test.yaml"));
    let alerts: BTreeSet<&str> =
        items(&rules, "/groups/0/rules").into_iter().map(|rule| text(rule, "/alert")).collect();
    let cases = items(&tests, "/tests").into_iter().flat_map(|test| items(test, "/alert_rule_test"));
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for case in cases {
        let cases = if items(case, "/exp_alerts").is_empty() { &mut quiet } else { &mut firing };
        cases.insert(text(case, "/alertname"));
    }
    assert_eq!(firing, alerts);
    assert_eq!(quiet, alerts);
}
