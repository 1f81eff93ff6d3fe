//! Downloads from a server on this machine: complete, interrupted, refused and wrong.

#[path = "support/web_server.rs"]
mod web_server;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use web_server::{Reply, WebServer};
use windlass_data::download::{
    self, AttemptError, DownloadCounts, DownloadError, DownloadEvent, RemoteFile, RetryPolicy, Source,
};

const NAME: &str = "digits.gz";

/// Larger than any buffer on the way, and without repetition.
fn content() -> Vec<u8> {
    (0..300_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn remote(name: &str, content: &[u8]) -> RemoteFile {
    let sha256 = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    RemoteFile { name: name.to_owned(), bytes: content.len() as u64, sha256 }
}

fn patience() -> RetryPolicy {
    RetryPolicy {
        connect: Duration::from_secs(5),
        read: Duration::from_secs(5),
        attempts: 3,
        backoff: Duration::from_millis(1),
    }
}

/// A directory to download to.
struct Target(TempDir);

impl Target {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self) -> PathBuf {
        self.path().join(NAME)
    }

    fn part(&self) -> PathBuf {
        self.path().join(format!("{NAME}.part"))
    }

    /// Downloads the single file from these mirrors.
    fn download(&self, mirrors: &[&WebServer]) -> Result<DownloadCounts, DownloadError> {
        let mirrors = mirrors.iter().map(|server| server.base_url()).collect();
        let source = Source { files: vec![remote(NAME, &content())], mirrors };
        download::download_from(&source, self.path(), &patience(), &mut |_| {})
    }
}

/// The only failure of a download from one mirror.
fn failure(result: Result<DownloadCounts, DownloadError>) -> AttemptError {
    match result.unwrap_err() {
        DownloadError::NoMirror { mut failures, .. } if failures.len() == 1 => failures.remove(0).error,
        other => panic!("{other}"),
    }
}

#[test]
fn all_files_are_downloaded_under_their_names() {
    let target = Target::new();
    let server = WebServer::start(|_, request| match request.path.as_str() {
        "/data/one" => Reply::whole(b"first"),
        "/data/two" => Reply::whole(b"second"),
        _ => Reply::status(404),
    });
    let files = vec![remote("one", b"first"), remote("two", b"second")];
    let source = Source { files, mirrors: vec![server.base_url()] };
    let directory = target.path().join("made/on/the/way");
    let summary = download::download_from(&source, &directory, &patience(), &mut |_| {}).unwrap();
    assert_eq!(summary, DownloadCounts { present: 0, downloaded: 2 });
    assert_eq!(fs::read(directory.join("one")).unwrap(), b"first");
    assert_eq!(fs::read(directory.join("two")).unwrap(), b"second");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

#[test]
fn progress_ends_with_the_whole_file() {
    let target = Target::new();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request));
    let source = Source { files: vec![remote(NAME, &content())], mirrors: vec![server.base_url()] };
    let mut seen = Vec::new();
    let mut report = |event: DownloadEvent<'_>| match event {
        DownloadEvent::Received { received, total, .. } => seen.push(format!("{received}/{total}")),
        DownloadEvent::Finished { file } => seen.push(format!("finished {file}")),
        other => panic!("{other:?}"),
    };
    download::download_from(&source, target.path(), &patience(), &mut report).unwrap();
    assert_eq!(seen.first().map(String::as_str), Some("0/300000"));
    assert_eq!(seen[seen.len() - 2..], ["300000/300000", "finished digits.gz"]);
}

#[test]
fn a_broken_connection_is_resumed_where_it_broke() {
    let target = Target::new();
    let server = WebServer::start(|number, request| {
        let reply = Reply::serve(&content(), request);
        if number == 0 { reply.cut_after(100_000) } else { reply }
    });
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [None, Some(100_000)]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
    assert!(!target.part().exists());
}

#[test]
fn what_an_earlier_run_left_is_not_fetched_again() {
    let target = Target::new();
    fs::write(target.part(), &content()[..250_000]).unwrap();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request));
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [Some(250_000)]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn a_complete_part_needs_no_request() {
    let target = Target::new();
    fs::write(target.part(), content()).unwrap();
    let server = WebServer::start(|_, _| Reply::status(500));
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), []);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn a_part_longer_than_the_file_is_begun_again() {
    let target = Target::new();
    fs::write(target.part(), [content(), vec![0; 10]].concat()).unwrap();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request));
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [None]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn a_server_without_ranges_sends_the_whole_file_again() {
    let target = Target::new();
    fs::write(target.part(), &content()[..1000]).unwrap();
    let server = WebServer::start(|_, _| Reply::whole(&content()));
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [Some(1000)]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn a_refused_range_is_followed_by_a_request_for_the_whole() {
    let target = Target::new();
    fs::write(target.part(), &content()[..1000]).unwrap();
    let server = WebServer::start(|_, request| match request.from {
        Some(_) => Reply::status(416),
        None => Reply::whole(&content()),
    });
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [Some(1000), None]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn another_range_than_asked_for_is_not_used() {
    let target = Target::new();
    fs::write(target.part(), &content()[..1000]).unwrap();
    let server = WebServer::start(|_, request| match request.from {
        Some(_) => Reply::range(&content(), 500),
        None => Reply::whole(&content()),
    });
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [Some(1000), None]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn a_wrong_checksum_names_both_and_removes_the_part() {
    let target = Target::new();
    let mut wrong = content();
    wrong[7] ^= 1;
    let (expected, got) = (remote(NAME, &content()).sha256, remote(NAME, &wrong).sha256);
    let server = WebServer::start(move |_, _| Reply::whole(&wrong));
    let error = failure(target.download(&[&server]));
    assert_eq!(error.to_string(), format!("wrong checksum: expected sha-256 {expected}, got {got}"));
    assert_eq!(server.ranges(), [None]);
    assert!(!target.part().exists() && !target.file().exists());
}

#[test]
fn a_part_of_another_file_is_thrown_away_and_the_whole_fetched() {
    let target = Target::new();
    fs::write(target.part(), [9; 1000]).unwrap();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request));
    target.download(&[&server]).unwrap();
    assert_eq!(server.ranges(), [Some(1000), None]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn a_missing_file_is_asked_for_once_and_named() {
    let target = Target::new();
    let server = WebServer::start(|_, _| Reply::status(404));
    let error = target.download(&[&server]).unwrap_err();
    let directory = target.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot download digits.gz: {}digits.gz: the server answered with status 404, expected 200 or 206\n\
             hint: name another mirror with --base-url, or copy the file to {directory}",
            server.base_url()
        )
    );
    assert_eq!(server.ranges(), [None]);
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
}

#[test]
fn the_next_mirror_is_tried_when_one_has_not_the_file() {
    let target = Target::new();
    let empty = WebServer::start(|_, _| Reply::status(404));
    let full = WebServer::start(|_, request| Reply::serve(&content(), request));
    target.download(&[&empty, &full]).unwrap();
    assert_eq!((empty.requests().len(), full.requests().len()), (1, 1));
}

#[test]
fn a_second_mirror_goes_on_where_the_first_broke_off() {
    let target = Target::new();
    let broken = WebServer::start(|_, request| match request.from {
        None => Reply::whole(&content()).cut_after(40_000),
        Some(_) => Reply::status(404),
    });
    let sound = WebServer::start(|_, request| Reply::serve(&content(), request));
    target.download(&[&broken, &sound]).unwrap();
    assert_eq!(sound.ranges(), [Some(40_000)]);
    assert_eq!(fs::read(target.file()).unwrap(), content());
}

#[test]
fn an_overloaded_server_is_asked_again() {
    let target = Target::new();
    let server = WebServer::start(
        |number, request| if number == 0 { Reply::status(503) } else { Reply::serve(&content(), request) },
    );
    target.download(&[&server]).unwrap();
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_server_that_stays_overloaded_is_given_up() {
    let target = Target::new();
    let server = WebServer::start(|_, _| Reply::status(503));
    let error = failure(target.download(&[&server]));
    assert!(matches!(error, AttemptError::Status(503)), "{error}");
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn a_server_that_keeps_breaking_off_is_given_up_and_the_part_kept() {
    let target = Target::new();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request).cut_after(10));
    let error = failure(target.download(&[&server]));
    assert!(matches!(error, AttemptError::CutShort { expected: 300_000, got: 30, .. }), "{error}");
    assert_eq!(fs::read(target.part()).unwrap(), content()[..30]);
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::new();
    let mirrors = vec![format!("http://{}", listener.local_addr().unwrap())];
    let source = Source { files: vec![remote(NAME, &content())], mirrors };
    let hasty = RetryPolicy { read: Duration::from_millis(50), attempts: 2, ..patience() };
    let error = failure(download::download_from(&source, target.path(), &hasty, &mut |_| {}));
    assert!(matches!(error, AttemptError::NoAnswer(_)), "{error}");
}

#[test]
fn a_file_of_another_size_is_refused_before_it_is_read() {
    let target = Target::new();
    let server = WebServer::start(|_, _| Reply::whole(b"<html>sign in to continue</html>"));
    let error = failure(target.download(&[&server]));
    assert_eq!(error.to_string(), "the server has a different file: expected 300000 bytes, got 32");
    assert!(!target.part().exists());
}

#[test]
fn an_endless_file_is_not_read_to_its_end() {
    let target = Target::new();
    let server = WebServer::start(|_, _| Reply::of_unknown_size(&[content(), content()].concat()));
    let error = failure(target.download(&[&server]));
    assert!(matches!(error, AttemptError::Size { expected: 300_000, .. }), "{error}");
    assert!(!target.part().exists());
}

#[test]
fn a_file_that_is_there_already_is_not_fetched() {
    let target = Target::new();
    fs::write(target.file(), content()).unwrap();
    let server = WebServer::start(|_, _| Reply::status(500));
    assert_eq!(target.download(&[&server]).unwrap(), DownloadCounts { present: 1, downloaded: 0 });
    assert_eq!(server.requests(), []);
}

#[test]
fn another_file_of_that_name_is_left_alone() {
    let target = Target::new();
    fs::write(target.file(), b"mine").unwrap();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request));
    let error = target.download(&[&server]).unwrap_err();
    assert!(matches!(error, DownloadError::InTheWay { .. }), "{error}");
    assert_eq!(fs::read(target.file()).unwrap(), b"mine");
    assert_eq!(server.requests(), []);
}

#[test]
fn two_downloads_to_one_place_do_not_mix() {
    let target = Target::new();
    let other = File::create(target.part()).unwrap();
    other.lock().unwrap();
    let server = WebServer::start(|_, request| Reply::serve(&content(), request));
    let error = target.download(&[&server]).unwrap_err();
    assert!(matches!(error, DownloadError::Busy { .. }), "{error}");
}

#[test]
fn an_unknown_data_set_lists_the_known_ones() {
    let error = download::download("imagenet", Path::new("nowhere"), None, &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "there is no data set \"imagenet\" to download, expected one of: mnist");
}

#[test]
fn a_base_url_that_is_none_is_refused_before_anything_is_made() {
    let target = Target::new();
    let directory = target.path().join("new");
    for url in ["example.org/mnist", "ftp://example.org/", "http://", "not a url", "http://example.org/?file="] {
        let error = download::download("mnist", &directory, Some(url), &mut |_| {}).unwrap_err();
        assert!(matches!(error, DownloadError::BaseUrl { .. }), "{url}: {error}");
    }
    assert!(!directory.exists());
}

#[test]
fn mnist_is_four_files_at_two_mirrors() {
    let source = Source::named("mnist").unwrap();
    assert_eq!((source.files.len(), source.mirrors.len()), (4, 2));
    assert!(source.files.iter().all(|file| file.sha256.len() == 64));
}
