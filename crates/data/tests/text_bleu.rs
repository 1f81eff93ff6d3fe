//! BLEU compared with sacreBLEU, if that is installed: `WINDLASS_PYTHON` names a Python that has it
//! (`pip install sacrebleu`).

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};

use windlass_data::text::Bleu;

/// Scores corpora of lines `candidate<TAB>reference`, each ended by a line `score`.
const SACREBLEU: &str = "
import sys
from sacrebleu.metrics import BLEU
bleu = BLEU(tokenize='none', smooth_method='exp', effective_order=False, force=True)
candidates, references = [], []
for line in sys.stdin:
    if line == 'score\\n':
        result = bleu.corpus_score(candidates, [references])
        print(repr(result.score), repr(result.bp), *map(repr, result.precisions))
        candidates, references = [], []
    else:
        candidate, reference = line.rstrip('\\n').split('\\t')
        candidates.append(candidate)
        references.append(reference)
";

/// A random sentence of `words` words out of `vocabulary`.
fn sentence(state: &mut u64, words: usize, vocabulary: u64) -> Vec<u64> {
    let mut below = |limit: u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % limit
    };
    (0..words).map(|_| below(vocabulary)).collect()
}

/// Corpora with candidates from unrelated to nearly identical, of one to a hundred sentences, some with empty lines.
fn corpora() -> Vec<Vec<(Vec<u64>, Vec<u64>)>> {
    let mut state = 1;
    let mut corpora = Vec::new();
    for case in 0..120_usize {
        let sentences = [1, 2, 10, 100][case % 4];
        let vocabulary = [3, 10, 50, 1000][case / 4 % 4];
        let corpus = (0..sentences).map(|index| {
            let reference = sentence(&mut state, (index * 7 + case) % 12, vocabulary);
            let mut candidate = reference.clone();
            if case % 3 > 0 {
                candidate.truncate(3 + index % 9);
                candidate.extend(sentence(&mut state, (index + case) % 4, vocabulary));
            }
            if case % 5 == 0 {
                candidate = sentence(&mut state, index % 9, vocabulary);
            }
            (candidate, reference)
        });
        corpora.push(corpus.collect());
    }
    corpora
}

#[test]
fn scores_are_those_of_sacrebleu() {
    let Some(python) = std::env::var_os("WINDLASS_PYTHON") else {
        println!("skipped: WINDLASS_PYTHON does not name a Python that has sacrebleu");
        return;
    };
    let corpora = corpora();
    let mut input = String::new();
    for corpus in &corpora {
        for (candidate, reference) in corpus {
            let line = |words: &[u64]| words.iter().map(|word| format!("w{word}")).collect::<Vec<_>>().join(" ");
            writeln!(input, "{}\t{}", line(candidate), line(reference)).unwrap();
        }
        input.push_str("score\n");
    }
    let mut python = Command::new(python)
        .args(["-c", SACREBLEU])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("WINDLASS_PYTHON names a program");
    // Dropping its stdin closes it; its output is small enough to wait in the pipe.
    python.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "sacrebleu failed; is it installed?");
    let output = String::from_utf8(output.stdout).unwrap();
    let scores: Vec<Vec<f64>> =
        output.lines().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!(scores.len(), corpora.len());
    let telling = scores.iter().filter(|score| score[0] > 1.0 && score[0] < 99.0).count();
    assert!(telling > 40, "only {telling} cases are neither all right nor all wrong");
    for (case, (corpus, expected)) in corpora.iter().zip(scores).enumerate() {
        let bleu = Bleu::of(corpus.iter().map(|(candidate, reference)| (&candidate[..], &reference[..])));
        let got = [&[bleu.score, bleu.brevity_penalty], &bleu.precisions[..]].concat();
        let differs = got.iter().zip(&expected).any(|(got, expected)| (got - expected).abs() > 1e-9);
        assert!(!differs, "case {case}: {got:?}, sacrebleu says {expected:?}");
    }
}
