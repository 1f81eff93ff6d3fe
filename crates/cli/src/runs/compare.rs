//! `windlass runs compare`: the settings and results in which runs differ.

use windlass_page::figures;
use windlass_runs::{Cell, Comparison, Row, Run};

use crate::failure::Failure;
use crate::output::{count, print_json, print_line, table_within};
use crate::terminal;

pub(super) fn run(runs: &[Run], json: bool) -> Result<(), Failure> {
    let comparison = Comparison::new(runs);
    if json {
        return print_json(&comparison);
    }
    print_line(&text(&comparison, terminal::columns()));
    Ok(())
}

fn text(comparison: &Comparison, columns: Option<u16>) -> String {
    let names = short_names(&comparison.runs);
    let table = |title: &str, rows: &[Row]| {
        let mut table = table_within(columns);
        table.set_header(std::iter::once(title).chain(names.iter().map(String::as_str)));
        for row in rows {
            table.add_row(std::iter::once(figures::plain(&row.name)).chain(row.values.iter().map(shown)));
        }
        table.trim_fmt()
    };
    let same = count(comparison.same_settings, "setting");
    let settings = match comparison.settings.is_empty() {
        true => format!(" all {same} are the same"),
        false => format!("{}\n {same} are the same", table("setting", &comparison.settings)),
    };
    format!("{settings}\n\n{}", table("result", &comparison.results))
}

/// The paths without their common prefix.
fn short_names(paths: &[String]) -> Vec<String> {
    let parent = |path: &String| path.rfind('/').map_or(0, |at| at + 1);
    let shared = paths.first().map_or(0, parent);
    let is_shared = |path: &String| path.get(..shared) == paths[0].get(..shared) && path.len() > shared;
    let cut = if paths.iter().all(is_shared) { shared } else { 0 };
    paths.iter().map(|path| figures::plain(&path[cut..])).collect()
}

fn shown(cell: &Cell) -> String {
    match cell {
        Cell::Number(number) => figures::value(*number),
        Cell::Fraction(share) => format!("{:.2}%", share * 100.0),
        Cell::Bytes(bytes) => figures::bytes(*bytes),
        Cell::Count(number) => figures::count(*number),
        Cell::Text(text) => figures::plain(text),
        Cell::None => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_side_by_side_under_the_names_that_tell_them_apart() {
        let row = |name: &str, values: [Cell; 2]| Row { name: name.into(), values: values.into() };
        let comparison = Comparison {
            runs: vec!["runs/a".into(), "runs/b".into()],
            settings: vec![row("learning-rate", ["0.01", "0.1"].map(|text| Cell::Text(text.into())))],
            same_settings: 30,
            results: vec![
                row("test accuracy", [Cell::Fraction(0.975), Cell::None]),
                row("loss", [Cell::Number(0.25), Cell::Number(1.5)]),
            ],
        };
        let expected = " setting        a     b\n learning-rate  0.01  0.1\n 30 settings are the same\n\n\
                        \u{20}result         a       b\n test accuracy  97.50%  –\n loss           0.2500  1.500";
        let lines: Vec<String> = text(&comparison, None).lines().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(lines.join("\n"), expected);
        assert_eq!(short_names(&["a/x".into(), "b/x".into()]), ["a/x", "b/x"]);
    }
}
