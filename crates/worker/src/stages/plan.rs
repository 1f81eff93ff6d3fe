//! A model's stages, checked: which parameters each has, which stages it feeds, and that together they return one loss.

use windlass_core::executor::{Graph, GraphError, LaneId, Node};
use windlass_core::parameter::ParameterTable;

use super::Stage;

/// Why a model cannot be divided into the stages that it declares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StagesError {
    /// The model declares no stages.
    #[error("the model has no stages")]
    None,
    /// A stage has a name that cannot be written in `--place`.
    #[error("{0:?} cannot be the name of a stage: letters, digits, `_`, `-`, `.` and `/` make one")]
    Name(String),
    /// Two stages have the same name.
    #[error("the model has two stages named {0:?}")]
    Twice(String),
    /// A stage takes input from something that is not a stage.
    #[error("stage {stage} takes input from {input:?}, which is not a stage")]
    UnknownInput {
        /// The stage.
        stage: String,
        /// The input that it names.
        input: String,
    },
    /// A stage names the same input twice.
    #[error("stage {stage} is fed by {input} twice: name it once; it receives every output of {input}")]
    FedTwice {
        /// The stage.
        stage: String,
        /// The input that it names.
        input: String,
    },
    /// The stages feed each other in a cycle.
    #[error("{}", in_words(.0))]
    Cycle(Vec<String>),
    /// Several stages feed no other, but only one can return the loss.
    #[error("stages {} feed no other, but only one can be the last, whose output is the loss", .0.join(" and "))]
    Ends(Vec<String>),
    /// A stage names a path where the network has no parameter.
    #[error("stage {stage} has the parameters at {path:?}, but the network has no parameter there; it has {}", known.join(", "))]
    UnknownPath {
        /// The stage.
        stage: String,
        /// The path that it names.
        path: String,
        /// The parameters of the network.
        known: Vec<String>,
    },
    /// A parameter belongs to no stage.
    #[error("parameter {0} belongs to no stage")]
    Homeless(String),
    /// A parameter belongs to two stages.
    #[error("parameter {parameter} belongs to two stages, {first} and {second}")]
    TwoHomes {
        /// The parameter.
        parameter: String,
        /// One of the stages.
        first: String,
        /// The other stage.
        second: String,
    },
}

fn in_words(circle: &[String]) -> String {
    match circle {
        [stage] => format!("stage {stage} feeds itself"),
        stages => format!("stages {} feed each other in a circle", stages.join(", ")),
    }
}

/// A stage with everything that follows from the other stages and the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedStage {
    pub(crate) name: String,
    /// The indices of its parameters in the table, in ascending order.
    pub(crate) parameters: Vec<usize>,
    /// The stages that feed it.
    pub(crate) inputs: Vec<usize>,
    /// The stages that it feeds.
    pub(crate) feeds: Vec<usize>,
}

/// The stages of a model, in the order in which it names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StagePlan {
    stages: Vec<PlannedStage>,
    /// The stage whose output is the loss.
    last: usize,
}

impl StagePlan {
    /// Checks that the stages have all parameters among them, and that they lead to one loss.
    pub(crate) fn new(declared: Vec<Stage>, table: &ParameterTable) -> Result<Self, StagesError> {
        if declared.is_empty() {
            return Err(StagesError::None);
        }
        if let Some(stage) = declared.iter().find(|stage| !is_name(&stage.name)) {
            return Err(StagesError::Name(stage.name.clone()));
        }
        let node =
            |stage: &Stage| Node { name: stage.name.clone(), lane: LaneId(0), after: stage.inputs.clone(), rank: 0 };
        Graph::new(declared.iter().map(node).collect()).map_err(|error| match error {
            GraphError::Twice(name) => StagesError::Twice(name),
            GraphError::Unknown { node, dependency } => StagesError::UnknownInput { stage: node, input: dependency },
            GraphError::Cycle(stages) => StagesError::Cycle(stages),
        })?;
        for Stage { name, inputs, .. } in &declared {
            if let Some((_, input)) = inputs.iter().enumerate().find(|(at, input)| inputs[..*at].contains(input)) {
                return Err(StagesError::FedTwice { stage: name.clone(), input: input.clone() });
            }
        }
        let homes = homes(&declared, table)?;
        let position = |name: &String| declared.iter().position(|stage| stage.name == *name).expect("it is a stage");
        let inputs: Vec<Vec<usize>> =
            declared.iter().map(|stage| stage.inputs.iter().map(position).collect()).collect();
        let feeds = |index: usize| (0..declared.len()).filter(|other| inputs[*other].contains(&index)).collect();
        let feeds: Vec<Vec<usize>> = (0..declared.len()).map(feeds).collect();
        let ends: Vec<usize> = (0..declared.len()).filter(|index| feeds[*index].is_empty()).collect();
        let [last] = ends[..] else {
            return Err(StagesError::Ends(ends.into_iter().map(|index| declared[index].name.clone()).collect()));
        };
        let stages = declared.iter().enumerate().map(|(index, stage)| PlannedStage {
            name: stage.name.clone(),
            parameters: (0..homes.len()).filter(|parameter| homes[*parameter] == index).collect(),
            inputs: inputs[index].clone(),
            feeds: feeds[index].clone(),
        });
        Ok(Self { stages: stages.collect(), last })
    }

    pub(crate) fn stages(&self) -> &[PlannedStage] {
        &self.stages
    }

    pub(crate) fn last(&self) -> usize {
        self.last
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.stages.iter().map(|stage| stage.name.clone()).collect()
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |character: char| character.is_ascii_alphanumeric() || "_-./".contains(character);
    !name.is_empty() && !name.starts_with('/') && name.chars().all(is_part)
}

/// Returns the stage of each parameter.
fn homes(declared: &[Stage], table: &ParameterTable) -> Result<Vec<usize>, StagesError> {
    let mut homes: Vec<Option<usize>> = vec![None; table.len()];
    for (index, stage) in declared.iter().enumerate() {
        for path in &stage.parameters {
            let is_at =
                |name: &str| name.strip_prefix(&**path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            let mut is_known = false;
            for ((_, spec), home) in table.iter().zip(&mut homes).filter(|((_, spec), _)| is_at(&spec.name)) {
                is_known = true;
                if let Some(other) = home.filter(|other| *other != index) {
                    return Err(StagesError::TwoHomes {
                        parameter: spec.name.clone(),
                        first: declared[other].name.clone(),
                        second: stage.name.clone(),
                    });
                }
                *home = Some(index);
            }
            if !is_known {
                let known = table.iter().map(|(_, spec)| spec.name.clone()).collect();
                return Err(StagesError::UnknownPath { stage: stage.name.clone(), path: path.clone(), known });
            }
        }
    }
    let home = |((_, spec), home): (_, Option<usize>)| {
        let spec: &windlass_core::parameter::ParameterSpec = spec;
        home.ok_or_else(|| StagesError::Homeless(spec.name.clone()))
    };
    table.iter().zip(homes).map(home).collect()
}

#[cfg(test)]
mod tests {
    use windlass_core::parameter::{Access, ParameterKind, ParameterSpec};

    use super::*;

    fn table() -> ParameterTable {
        let spec = |name: &str| ParameterSpec {
            name: name.to_owned(),
            shape: vec![2],
            access: Access::Dense,
            kind: ParameterKind::Trained,
        };
        ParameterTable::new(["in.weight", "left.weight", "left.bias", "leftover"].map(spec).to_vec()).unwrap()
    }

    fn stages() -> Vec<Stage> {
        vec![
            Stage::new("out").with("leftover").after("left").after("right"),
            Stage::new("in").with("in"),
            Stage::new("left").with("left").after("in"),
            Stage::new("right").after("in"),
        ]
    }

    fn refused(change: impl FnOnce(&mut Vec<Stage>)) -> String {
        let mut changed = stages();
        change(&mut changed);
        StagePlan::new(changed, &table()).unwrap_err().to_string()
    }

    #[test]
    fn stages_may_branch_and_are_known_by_whom_they_feed() {
        let plan = StagePlan::new(stages(), &table()).unwrap();
        assert_eq!(plan.last(), 0);
        let [out, first, left, right] = plan.stages() else { panic!("four stages") };
        assert_eq!((&out.inputs[..], &out.parameters[..]), (&[2, 3][..], &[3][..]));
        assert_eq!((&first.feeds[..], &first.parameters[..]), (&[2, 3][..], &[0][..]));
        assert_eq!((&left.feeds[..], &left.parameters[..]), (&[0][..], &[1, 2][..]));
        assert!(right.parameters.is_empty());
    }

    #[test]
    fn stages_that_do_not_make_a_model_are_refused_by_name() {
        assert_eq!(refused(Vec::clear), "the model has no stages");
        assert_eq!(
            refused(|stages| stages[1].name = "a=b".to_owned()),
            "\"a=b\" cannot be the name of a stage: letters, digits, `_`, `-`, `.` and `/` make one"
        );
        assert_eq!(refused(|stages| stages[3].name = "in".to_owned()), "the model has two stages named \"in\"");
        assert_eq!(
            refused(|stages| stages[3].inputs = vec!["inn".to_owned()]),
            "stage right takes input from \"inn\", which is not a stage"
        );
        assert_eq!(
            refused(|stages| stages[1].inputs = vec!["right".to_owned()]),
            "stages right, in feed each other in a circle"
        );
        assert_eq!(refused(|stages| stages[1].inputs = vec!["in".to_owned()]), "stage in feeds itself");
        assert_eq!(
            refused(|stages| stages[3].inputs = vec!["in".to_owned(), "in".to_owned()]),
            "stage right is fed by in twice: name it once; it receives every output of in"
        );
        assert_eq!(
            refused(|stages| stages[0].inputs.truncate(1)),
            "stages out and right feed no other, but only one can be the last, whose output is the loss"
        );
        assert_eq!(refused(|stages| stages[0].parameters.clear()), "parameter leftover belongs to no stage");
        assert_eq!(
            refused(|stages| stages[3].parameters = vec!["left.bias".to_owned()]),
            "parameter left.bias belongs to two stages, left and right"
        );
        assert_eq!(
            refused(|stages| stages[3].parameters = vec!["righ".to_owned()]),
            "stage right has the parameters at \"righ\", but the network has no parameter there; it has in.weight, left.weight, left.bias, leftover"
        );
    }
}
