//! Tests the network against oracles: finite differences for its gradients, brute force for its searches.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use windlass_data::text::tokenise::tokenise;
use windlass_data::text::vocabulary::{EOS, UNK};
use windlass_data::text::{Batch, Bucket, Corpus, TextPair, VocabularySizes};

use super::batch::{Batching, StepBatch};
use super::cells::Cell;
use super::decode::{Beam, Translation, beam, greedy};
use super::interpreter::{InterpretError, Interpreter};
use super::network::{Shape, Translator};
use super::saved::{Saved, SavedError};

const SHAPE: Shape = Shape { layers: 2, size: 5, cell: Cell::Gru, from_words: 9, to_words: 7 };
const BUCKET: Bucket = Bucket::new(4, 5);
const PLAIN: Beam = Beam { width: 100, length_penalty: 0.0 };

/// Burn's random numbers are global, so tests draw them one at a time.
fn alone<T>(draw: impl FnOnce() -> T) -> T {
    static DRAWING: Mutex<()> = Mutex::new(());
    let _alone = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    draw()
}

fn network(shape: &Shape, device: &Device) -> Translator {
    alone(|| {
        device.seed(11);
        let network = Translator::new(shape, device);
        // Reading all parameters makes Burn draw them.
        named_values(&network);
        network
    })
}

fn batch(samples: Option<usize>) -> StepBatch {
    let pairs: [(&[u32], &[u32]); 3] = [(&[4, 8, 5], &[6, 4, 5]), (&[7], &[5]), (&[6, 6], &[4, 6])];
    let batching = Batching { to_words: SHAPE.to_words, samples, by_rows: false };
    batching.batch(&Batch::new(BUCKET, &pairs), 3)
}

/// Changes one value of one parameter.
struct Nudge {
    parameter: usize,
    element: usize,
    by: f32,
}

impl ModuleMapper for Nudge {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let here = self.parameter == 0;
        self.parameter = self.parameter.wrapping_sub(1);
        if !here {
            return param;
        }
        param.map(|tensor| {
            let (shape, device) = (tensor.dims(), tensor.device());
            let mut values: Vec<f32> = tensor.into_data().iter::<f32>().collect();
            values[self.element] += self.by;
            Tensor::from_data(TensorData::new(values, shape), &device)
        })
    }
}

struct Taken<'a>(&'a Gradients, Vec<Vec<f32>>);

impl ModuleVisitor for Taken<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.0).expect("every parameter has a part in the loss");
        self.1.push(gradient.into_data().iter::<f32>().collect());
    }
}

fn assert_gradients_are_differences(shape: Shape, samples: Option<usize>) {
    let (device, batch) = (Device::flex().autodiff(), batch(samples));
    let plain = network(&shape, &Device::flex());
    let recorded = network(&shape, &device);
    let gradients = recorded.loss(&batch).backward();
    let mut taken = Taken(&gradients, Vec::new());
    recorded.visit(&mut taken);
    let step = 1e-2;
    for (parameter, gradient) in taken.1.iter().enumerate() {
        // Checking a few elements of each parameter is enough.
        for element in (0..gradient.len()).step_by(gradient.len().div_ceil(6)) {
            let at = |by: f32| {
                let nudged = plain.clone().map(&mut Nudge { parameter, element, by });
                nudged.loss(&batch).into_data().iter::<f64>().next().unwrap()
            };
            let difference = (at(step) - at(-step)) / (2.0 * f64::from(step));
            let got = f64::from(gradient[element]);
            assert!((got - difference).abs() < 1e-3, "{parameter}.{element}: {got}, differences {difference}");
        }
    }
}

#[test]
fn gradients_of_the_attention_decoder_are_finite_differences() {
    assert_gradients_are_differences(SHAPE, None);
}

#[test]
fn gradients_with_long_short_term_memory_and_a_sampled_softmax_are_finite_differences() {
    assert_gradients_are_differences(Shape { cell: Cell::Lstm, ..SHAPE }, Some(3));
}

/// The logarithm of a translation's probability, from the training loss.
fn log_probability(network: &Translator, sentence: &[u32], words: &[u32]) -> f64 {
    let batching = Batching { to_words: SHAPE.to_words, samples: None, by_rows: false };
    let batch = batching.batch(&Batch::new(BUCKET, &[(sentence, words)]), 0);
    -network.loss(&batch).into_data().iter::<f64>().next().unwrap() * (words.len() + 1) as f64
}

/// Every sentence that can end within the bucket.
fn everything() -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new()];
    let mut start = 0;
    for _ in 1..BUCKET.decoder_steps() {
        let end = all.len();
        for prefix in start..end {
            for word in UNK..SHAPE.to_words as u32 {
                all.push([&all[prefix][..], &[word]].concat());
            }
        }
        start = end;
    }
    all
}

#[test]
fn a_wide_beam_finds_what_brute_force_finds() {
    let network = network(&SHAPE, &Device::flex());
    let sentence = [5, 8, 4];
    let mut expected: Vec<(Vec<u32>, f64)> = everything()
        .into_iter()
        .map(|words| {
            let log_probability = log_probability(&network, &sentence, &words);
            (words, log_probability)
        })
        .collect();
    expected.sort_by(|one, other| other.1.total_cmp(&one.1));
    let found = beam(&network, BUCKET, &sentence, Beam { width: 1000, ..PLAIN });
    assert_eq!(found.len(), expected.len());
    for (found, (words, log_probability)) in found.iter().zip(&expected).take(20) {
        assert_eq!(&found.words, words);
        assert!((found.log_probability - log_probability).abs() < 1e-4, "{found:?} {log_probability}");
        assert!(found.is_whole);
    }
}

#[test]
fn a_beam_of_one_is_greedy_and_sentences_do_not_disturb_each_other() {
    let network = network(&SHAPE, &Device::flex());
    let sentences: [&[u32]; 3] = [&[5, 8, 4], &[6], &[7, 7]];
    let together = greedy(&network, BUCKET, &sentences);
    for (sentence, translation) in sentences.into_iter().zip(together) {
        assert_close(&beam(&network, BUCKET, sentence, Beam { width: 1, ..PLAIN })[0], &translation);
        assert_close(&greedy(&network, BUCKET, &[sentence])[0], &translation);
    }
}

fn assert_close(one: &Translation, other: &Translation) {
    assert_eq!((&one.words, one.is_whole), (&other.words, other.is_whole));
    assert!((one.log_probability - other.log_probability).abs() < 1e-4, "{one:?} {other:?}");
}

#[test]
fn every_word_keeps_the_attention_that_each_word_of_the_sentence_had() {
    let network = network(&SHAPE, &Device::flex());
    let sentence = [5, 8];
    for translation in beam(&network, BUCKET, &sentence, PLAIN) {
        assert_eq!(translation.attention.len(), translation.words.len());
        for attention in &translation.attention {
            assert_eq!(attention.len(), sentence.len());
            let sum: f32 = attention.iter().sum();
            assert!(attention.iter().all(|weight| *weight > 0.0) && sum < 1.0, "two steps are padding: {attention:?}");
        }
    }
}

#[test]
fn long_translations_can_be_helped() {
    let network = network(&SHAPE, &Device::flex());
    let length = |length_penalty| {
        let found = beam(&network, BUCKET, &[5, 8, 4], Beam { length_penalty, ..PLAIN });
        found[0].words.len()
    };
    assert_eq!(length(0.0), 0, "each word costs some probability, and this network has learned nothing");
    assert_eq!(length(10.0), BUCKET.decoder_steps() - 1);
}

fn interpreter(network: Translator) -> Interpreter {
    let pair = TextPair { from: "one two three four five".into(), to: "un deux trois".into() };
    let corpus = Corpus::of_text(&[pair], &[], VocabularySizes::default());
    assert_eq!((corpus.from.size(), corpus.to.size()), (SHAPE.from_words, SHAPE.to_words));
    Interpreter { network, from: corpus.from, to: corpus.to, buckets: vec![Bucket::new(2, 3), BUCKET] }
}

#[test]
fn a_word_that_is_not_known_is_the_one_that_had_the_most_attention() {
    let interpreter = interpreter(network(&SHAPE, &Device::flex()));
    let source: Vec<String> = tokenise("one Xerxes three").map(String::from).collect();
    let numbers: Vec<u32> = source.iter().map(|word| interpreter.from.id(word)).collect();
    assert_eq!(numbers[1], UNK);
    let found = beam(&interpreter.network, BUCKET, &numbers, PLAIN);
    let unknown = found.iter().find(|found| found.words.first() == Some(&UNK)).expect("the beam is wide");
    let attention = &unknown.attention[0];
    let most = (0..3).max_by(|one, other| attention[*one].total_cmp(&attention[*other])).unwrap();
    assert_eq!(interpreter.words(unknown, &source)[0], source[most]);
}

#[test]
fn sentences_go_to_the_first_bucket_that_they_fit_and_others_are_refused() {
    let interpreter = interpreter(network(&SHAPE, &Device::flex()));
    let most = |sentence: &str| interpreter.translate(sentence, None).map(|said| said.words.len());
    assert!(most("two").unwrap() <= 2);
    assert!(most("two three").unwrap() <= 4);
    assert_eq!(most("one two three four"), Err(InterpretError::TooLong { words: 4, longest: 4 }));
    assert_eq!(most("  "), Err(InterpretError::Blank));
}

/// The values of all parameters, by path.
fn named_values(network: &Translator) -> HashMap<String, Vec<f32>> {
    struct Named(Vec<String>, HashMap<String, Vec<f32>>);
    impl ModuleVisitor for Named {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.insert(self.0.join("."), param.val().into_data().iter::<f32>().collect());
        }
    }
    let mut named = Named(Vec::new(), HashMap::new());
    network.visit(&mut named);
    named.1
}

#[test]
fn a_network_is_made_of_values_by_name() {
    let device = Device::flex();
    let trained = network(&SHAPE, &device);
    let named = named_values(&trained);
    let value = |name: &str| named.get(name).cloned();
    let load = |shape: &Shape, value: &dyn Fn(&str) -> Option<Vec<f32>>| {
        alone(|| Translator::with_values(shape, value, &device))
    };
    let loaded = load(&SHAPE, &value).unwrap();
    let sentence: &[u32] = &[5, 8, 4];
    assert_eq!(greedy(&loaded, BUCKET, &[sentence]), greedy(&trained, BUCKET, &[sentence]));

    let without = |name: &str| value(name).filter(|_| name != "decoder.query.weight");
    let missing = load(&SHAPE, &without).unwrap_err();
    assert_eq!(missing.to_string(), "parameter `decoder.query.weight` of shape [10, 5] has no values");
    let other = Shape { to_words: 8, ..SHAPE };
    let missing = load(&other, &value).unwrap_err();
    assert_eq!(missing.to_string(), "parameter `to_embedding` of shape [8, 5] has 35 values");
}

/// A translator from a run's description in which a part has been replaced.
fn described(replaced: &str, by: &str) -> Result<Interpreter, SavedError> {
    let trained = interpreter(network(&SHAPE, &Device::flex()));
    let saved = Saved::new(SHAPE, &trained.buckets, &trained.from, &trained.to);
    let description = serde_json::to_string(&saved).unwrap();
    assert!(description.contains(replaced), "{description}");
    let named = named_values(&trained.network);
    let values = |name: &str| named.get(name).cloned();
    alone(|| Interpreter::new(&description.replacen(replaced, by, 1), values, &Device::flex()))
}

#[test]
fn a_run_describes_all_that_it_takes_to_translate() {
    let trained = interpreter(network(&SHAPE, &Device::flex()));
    let loaded = described("", "").unwrap();
    let sentence = "three one four";
    assert_eq!(loaded.translate(sentence, Some(PLAIN)), trained.translate(sentence, Some(PLAIN)));
}

#[test]
fn a_description_that_is_damaged_or_of_another_network_is_refused() {
    let refusals = [
        ("{", "", "expected struct Saved at line 1 column 7"),
        ("\"three\"", "\"one\"", "it has no vocabulary: line 8 has the word \"one\" of line 7 again"),
        (",\"three\"", "", "its vocabularies have 8 and 7 words, and its network 9 and 7"),
        ("[[2,3],[4,5]]", "[]", "it has no buckets, or one without length"),
        ("[[2,3],", "[[0,0],", "it has no buckets, or one without length"),
        ("\"size\":5", "\"size\":18446744073709551615", "of shape [9, 18446744073709551615] has 45 values"),
        ("\"layers\":2", "\"layers\":1000000000", "parameter `encoder.999999999.bias` of shape [15] has no values"),
        ("\"layers\":2", "\"layers\":1", "parameter `encoder.1.bias` of shape [] has 15 values"),
        ("\"gru\"", "\"lstm\"", "parameter `encoder.1.bias` of shape [20] has 15 values"),
    ];
    for (replaced, by, why) in refusals {
        let refused = described(replaced, by).err().expect("it is refused").to_string();
        assert!(refused.ends_with(why), "{refused}");
    }
}

#[test]
fn the_end_of_a_sentence_is_no_word_of_it() {
    let network = network(&SHAPE, &Device::flex());
    let found = beam(&network, BUCKET, &[5], PLAIN);
    assert!(found.iter().all(|translation| !translation.words.contains(&EOS)));
}
