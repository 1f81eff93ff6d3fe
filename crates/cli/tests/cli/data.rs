//! Sources of data: downloads, and directories of idx files.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use insta::assert_snapshot;

use crate::cluster::{Launched, summary};
use crate::digits::DigitFiles;
use crate::process::windlass;

/// The address of a web server without any files.
fn empty_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    // The server ends with the tests.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let request = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            request.take_while(|line| !line.is_empty()).for_each(drop);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

#[test]
fn a_server_without_the_files_is_named_with_its_answer() {
    let address = empty_server();
    let told = windlass("data download mnist --dir digits --base-url").with(&address).run();
    assert_snapshot!(told.naming(&address, "[SERVER]/"), @"
    exit code 1
    --- stdout
    --- stderr
    train-images-idx3-ubyte.gz: [SERVER]/train-images-idx3-ubyte.gz: the server answered with status 404, expected 200 or 206
    error: cannot download train-images-idx3-ubyte.gz: [SERVER]/train-images-idx3-ubyte.gz: the server answered with status 404, expected 200 or 206
    hint: name another mirror with --base-url, or copy the file to digits
    ");
}

#[test]
fn nothing_is_left_of_a_download_that_failed() {
    let told = windlass("data download mnist --dir digits --base-url").with(empty_server()).run();
    let left: Vec<_> = std::fs::read_dir(told.directory().join("digits")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_unknown_data_set_is_refused() {
    assert_snapshot!(windlass("data download cats").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: there is no data set "cats" to download, expected one of: mnist
    "#);
}

#[test]
fn an_address_that_is_none_is_refused() {
    assert_snapshot!(windlass("data download mnist --base-url example").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: cannot download from "example", expected an address such as https://example.org/mnist/
    "#);
}

#[test]
fn plain_files_are_trained_on() {
    let files = DigitFiles::new(1200, 100);
    let told = windlass("train mnist --epochs 2 --run-dir run --data-dir").with(files.path()).run().succeeded();
    assert!(told.stderr.contains("1100 training images from"), "{told}");
    assert_eq!(summary(&told)["global_step"], 22);
}

#[test]
fn compressed_files_are_trained_on() {
    let files = DigitFiles::compressed(1200, 100);
    let told = windlass("train mnist --epochs 2 --run-dir run --data-dir").with(files.path()).run().succeeded();
    assert!(told.stderr.contains("1100 training images from"), "{told}");
}

#[test]
fn a_path_may_have_spaces_in_it_also_with_launch() {
    let files = DigitFiles::new(1200, 100);
    let spaced = files.path().with_file_name(format!("{} and more", files.path().file_name().unwrap().display()));
    std::os::unix::fs::symlink(files.path(), &spaced).unwrap();
    let launched = windlass("launch mnist --epochs 1 --format json --run-dir run --data-dir").with(&spaced);
    let told = Launched::by(launched).wait();
    std::fs::remove_file(&spaced).unwrap();
    told.succeeded();
}

#[test]
fn shared_out_data_is_gone_through_once_by_all_workers_together() {
    let files = DigitFiles::new(1200, 100);
    let words = "launch mnist --shard-data --epochs 1 --batch-size 50 --run-dir run --data-dir";
    let told = windlass(words).with(files.path()).run().succeeded();
    assert_eq!(summary(&told)["global_step"], 22);
}
