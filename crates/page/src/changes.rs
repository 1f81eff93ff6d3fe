//! The difference between two views, as JSON that the script applies.
//!
//! The change of an object is an object with the changes of its fields. The change of an array is
//! `{"$drop": n, "$push": […]}` if items were removed at the front and appended at the end, `{"$at": {"3": …}}` if its
//! length is the same, and otherwise, as for everything else, `{"$set": …}`.

use serde_json::{Map, Value, json};

/// The change from one value to another; `None` if they are equal.
pub(crate) fn between(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        _ if old == new => None,
        (Value::Object(old), Value::Object(new)) if old.len() == new.len() && old.keys().eq(new.keys()) => {
            let change = |(key, value): (&String, &Value)| Some((key.clone(), between(&old[key], value)?));
            Some(Value::Object(new.iter().filter_map(change).collect()))
        }
        (Value::Array(old), Value::Array(new)) => Some(between_arrays(old, new)),
        // A scalar is its own change; an object or array would be mistaken for a change.
        (_, Value::Object(_) | Value::Array(_)) => Some(json!({ "$set": new })),
        _ => Some(new.clone()),
    }
}

fn between_arrays(old: &[Value], new: &[Value]) -> Value {
    if let Some(dropped) = shifted_by(old, new) {
        return json!({ "$drop": dropped, "$push": new[old.len() - dropped..] });
    }
    if old.len() == new.len() {
        let change = |(index, (old, new)): (usize, (&Value, &Value))| Some((index.to_string(), between(old, new)?));
        let changes: Map<String, Value> = old.iter().zip(new).enumerate().filter_map(change).collect();
        return json!({ "$at": changes });
    }
    json!({ "$set": new })
}

/// How many items were removed at the front, provided that some remain and the new array begins with them.
fn shifted_by(old: &[Value], new: &[Value]) -> Option<usize> {
    (0..old.len()).find(|dropped: &usize| new.starts_with(&old[*dropped..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Does what the script does.
    fn apply(old: &Value, change: &Value) -> Value {
        let Value::Object(fields) = change else { return change.clone() };
        if let Some(set) = fields.get("$set") {
            return set.clone();
        }
        if let (Some(dropped), Some(pushed)) = (fields.get("$drop"), fields.get("$push")) {
            let kept = &old.as_array().unwrap()[dropped.as_u64().unwrap() as usize..];
            return kept.iter().chain(pushed.as_array().unwrap()).cloned().collect();
        }
        let mut new = old.clone();
        if let Some(changes) = fields.get("$at") {
            for (index, change) in changes.as_object().unwrap() {
                let index: usize = index.parse().unwrap();
                new[index] = apply(&old[index], change);
            }
        } else {
            fields.iter().for_each(|(key, change)| new[key] = apply(&old[key], change));
        }
        new
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<i8>().prop_map(Value::from), "[ab]{0,2}".prop_map(Value::from)];
        leaf.prop_recursive(3, 20, 5, |inner| {
            let object = proptest::collection::btree_map("[abc]", inner.clone(), 0..4);
            prop_oneof![
                proptest::collection::vec(inner, 0..5).prop_map(Value::from),
                object.prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn applying_a_change_gives_the_new_value(old in any_json(), new in any_json()) {
            let changed = between(&old, &new).map_or(old.clone(), |change| apply(&old, &change));
            prop_assert_eq!(changed, new);
        }
    }

    #[test]
    fn a_window_that_moved_costs_only_what_is_new() {
        let change = between(&json!({"a": [1, 2, 3], "b": 1}), &json!({"a": [2, 3, 4], "b": 1}));
        assert_eq!(change, Some(json!({"a": {"$drop": 1, "$push": [4]}})));
    }

    #[test]
    fn a_row_that_changed_costs_only_what_changed() {
        let rows = |step: u32| json!([{"name": "worker 0", "step": 4}, {"name": "worker 1", "step": step}]);
        assert_eq!(between(&rows(1), &rows(2)), Some(json!({"$at": {"1": {"step": 2}}})));
        assert_eq!(between(&rows(1), &rows(1)), None);
    }
}
