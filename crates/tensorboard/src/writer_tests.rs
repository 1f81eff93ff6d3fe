//! Tests of `writer`: files are parsed again, record by record.

use std::time::Duration;

use super::*;

fn at(step: u64) -> Moment {
    Moment { step, wall_time: UNIX_EPOCH + Duration::from_millis(1_700_000_000_250 + step) }
}

/// The events of a complete file.
fn events(path: &Path) -> Vec<Event> {
    record::parse(&fs::read(path).unwrap())
}

/// The values of all summaries of a file: (step, value).
fn values(path: &Path) -> Vec<(i64, TaggedValue)> {
    let summaries = events(path).into_iter().filter_map(|event| match event.what {
        Some(What::Summary(summary)) => Some((event.step, summary)),
        _ => None,
    });
    summaries.flat_map(|(step, summary)| summary.values.into_iter().map(move |value| (step, value))).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn file_name(writer: &EventWriter) -> String {
    writer.path().file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_new_file_says_its_version_and_that_a_session_starts_before_anything_is_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let writer = EventWriter::resume(directory.path().join("a/b"), 61).unwrap();
    let [version, start] = events(writer.path()).try_into().unwrap();
    assert_eq!((version.step, version.what), (0, Some(What::FileVersion("brain.Event:2".into()))));
    assert_eq!((start.step, start.what), (61, Some(What::SessionLog(SessionLog { status: 1 }))));
    assert!(version.wall_time > 1.7e9 && start.wall_time == version.wall_time);
}

#[test]
fn several_scalars_are_one_event_with_step_and_wall_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    writer.scalars(at(7), &[("loss", 0.25), ("accuracy", 0.5)]).unwrap();
    writer.scalars(at(8), &[]).unwrap();
    writer.flush().unwrap();
    let [_, _, event] = events(writer.path()).try_into().unwrap();
    assert_eq!((event.step, event.wall_time), (7, 1_700_000_000.257));
    let Some(What::Summary(summary)) = event.what else { panic!("{:?} is no summary", event.what) };
    let scalar = |tag: &str, value| TaggedValue { tag: tag.into(), metadata: None, value: Some(Value::Simple(value)) };
    assert_eq!(summary.values, [scalar("loss", 0.25), scalar("accuracy", 0.5)]);
}

#[test]
fn scalars_that_are_not_finite_are_written_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    writer.scalars(at(1), &[("a", f64::NAN), ("b", f64::INFINITY), ("c", f64::NEG_INFINITY), ("d", 1e300)]).unwrap();
    writer.flush().unwrap();
    let scalars: Vec<f32> = values(writer.path())
        .into_iter()
        .map(|(_, tagged)| match tagged.value {
            Some(Value::Simple(value)) => value,
            other => panic!("{other:?} is no scalar"),
        })
        .collect();
    assert!(scalars[0].is_nan());
    assert_eq!(scalars[1..], [f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY]);
}

#[test]
fn a_histogram_leaves_out_what_is_not_finite_and_says_how_many() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    assert_eq!(writer.histogram(at(1), "weights", &[1.0, f32::NAN, 2.0, f32::INFINITY]).unwrap(), 2);
    assert_eq!(writer.histogram(at(2), "weights", &[f32::NAN]).unwrap(), 1);
    assert_eq!(writer.histogram(at(3), "weights", &[]).unwrap(), 0);
    writer.flush().unwrap();
    let [(step, tagged)] = values(writer.path()).try_into().unwrap();
    let Some(Value::Histogram(histogram)) = tagged.value else { panic!("{tagged:?} is no histogram") };
    assert_eq!((step, histogram.num, histogram.sum), (1, 2.0, 3.0));
}

#[test]
fn a_text_is_a_scalar_of_strings_for_the_text_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    writer.text(at(0), "config", "größe = 3").unwrap();
    writer.flush().unwrap();
    let [(_, tagged)] = values(writer.path()).try_into().unwrap();
    let metadata = tagged.metadata.unwrap();
    assert_eq!((metadata.plugin.unwrap().name.as_str(), metadata.data_class), ("text", 2));
    let Some(Value::Tensor(tensor)) = tagged.value else { panic!("no tensor") };
    assert_eq!((tensor.data_type, tensor.strings), (7, vec!["größe = 3".as_bytes().to_vec()]));
}

#[test]
fn an_image_is_a_png_file_with_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x07\0\0\0\x05\x08\x02 and the rest";
    writer.image(at(4), "digits", png).unwrap();
    let error = writer.image(at(5), "digits", b"no picture").unwrap_err().to_string();
    assert_eq!(error, format!("cannot write image \"digits\" to {}: not a PNG file", writer.path().display()));
    writer.flush().unwrap();
    let [(step, tagged)] = values(writer.path()).try_into().unwrap();
    let Some(Value::Image(image)) = tagged.value else { panic!("{tagged:?} is no image") };
    assert_eq!((step, image.width, image.height, image.colorspace), (4, 7, 5, 3));
    assert_eq!(image.encoded, png);
}

#[test]
fn a_session_is_metadata_of_the_hparams_plugin_on_a_tensor_without_values() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let hparams = [("optimizer".to_owned(), HParam::Text("adam".into()))];
    writer.session_start(at(0), &hparams).unwrap();
    writer.session_end(at(9)).unwrap();
    writer.flush().unwrap();
    let sessions = values(writer.path()).into_iter().map(|(step, tagged)| {
        let metadata = tagged.metadata.unwrap();
        let plugin = metadata.plugin.unwrap();
        assert_eq!((plugin.name.as_str(), metadata.data_class), ("hparams", 2));
        let Some(Value::Tensor(tensor)) = tagged.value else { panic!("no tensor") };
        assert_eq!((tensor.data_type, tensor.shape.unwrap().dimensions[0].size), (1, 0));
        (step, tagged.tag, HParamsData::decode(&plugin.content[..]).unwrap())
    });
    let sessions: Vec<_> = sessions.collect();
    let expected = [
        (0, "_hparams_/session_start_info".to_owned(), hparams::start(&hparams, 1_700_000_000.25)),
        (9, "_hparams_/session_end_info".to_owned(), hparams::end(1_700_000_000.259)),
    ];
    assert_eq!(sessions, expected);
}

#[test]
fn what_waits_in_memory_is_written_in_whole_records_and_at_the_drop() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let path = writer.path().to_owned();
    for step in 0..5000 {
        writer.scalars(at(step), &[("loss", step as f64)]).unwrap();
    }
    let before = values(&path).len();
    assert!(0 < before && before < 5000, "{before} points written while the writer is full of more");
    drop(writer);
    let steps: Vec<i64> = values(&path).into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, (0..5000).collect::<Vec<_>>());
}

#[test]
fn files_of_one_second_are_named_in_the_order_in_which_they_were_made() {
    let directory = tempfile::tempdir().unwrap();
    let made: Vec<_> = (0..12).map(|step| file_name(&EventWriter::resume(directory.path(), step).unwrap())).collect();
    assert_eq!(names(directory.path()), made);
}

#[test]
fn a_file_comes_after_one_from_a_clock_that_is_ahead() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("events.out.tfevents.9000000000.other.1.0.v2"), b"").unwrap();
    fs::write(directory.path().join("events.out.tfevents.no-number"), b"").unwrap();
    let name = file_name(&EventWriter::resume(directory.path(), 1).unwrap());
    assert!(name.starts_with("events.out.tfevents.9000000001."), "{name}");
}

#[test]
fn an_empty_tag_and_one_without_end_are_refused_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let path = writer.path().display().to_string();
    let empty = writer.scalars(at(1), &[("loss", 1.0), ("", 1.0)]).unwrap_err();
    assert_eq!(empty.to_string(), format!("cannot write a value with an empty tag to {path}"));
    let long = writer.text(at(1), &"ä".repeat(513), "").unwrap_err();
    let start = "ä".repeat(40);
    let expected = format!("cannot write tag {start:?}… of 1026 bytes to {path}, the longest is 1024");
    assert_eq!(long.to_string(), expected);
    writer.histogram(at(1), &"ä".repeat(512), &[1.0]).unwrap();
    writer.flush().unwrap();
    assert_eq!(values(writer.path()).len(), 1);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    let below = file.join("train");
    let error = EventWriter::create(&below).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot use directory {} for event files: ", below.display())), "{error}");
}

/// A limit on file sizes simulates a full disk. It applies to the whole process, so the test runs itself as a child.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_costs_the_events_that_waited_but_not_the_file() {
    const DIRECTORY: &str = "WINDLASS_TEST_FULL_DISK";
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return write_to_a_full_disk(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    // The signal that comes with the limit would kill the process.
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg("writer::tests::a_full_disk_costs_the_events_that_waited_but_not_the_file")
        .env(DIRECTORY, directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let [name] = names(directory.path()).try_into().unwrap();
    let steps: Vec<i64> = values(&directory.path().join(name)).into_iter().map(|(step, _)| step).collect();
    assert_eq!(steps, [1, 1000]);
}

#[cfg(target_os = "linux")]
fn write_to_a_full_disk(directory: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut writer = EventWriter::create(directory).unwrap();
    writer.scalars(at(1), &[("loss", 1.0)]).unwrap();
    writer.flush().unwrap();

    let unlimited = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(1000), ..unlimited }).unwrap();
    (2..1000).for_each(|step| writer.scalars(at(step), &[("loss", 1.0)]).unwrap());
    let error = writer.flush().unwrap_err().to_string();
    let expected = format!("cannot write to event file {}: ", writer.path().display());
    assert!(error.starts_with(&expected), "{error}");

    setrlimit(Resource::Fsize, unlimited).unwrap();
    writer.scalars(at(1000), &[("loss", 1.0)]).unwrap();
    writer.flush().unwrap();
}
