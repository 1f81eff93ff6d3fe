//! The command that resumes a run: the user's own command line, quoted for a shell.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::args::hyphenate;
use crate::settings::{Origin, Settings, variable};

/// The command line of this process, changed so that it resumes from the run's newest checkpoint. `default_run_dir` is
/// the run directory if the command line does not name one.
pub(crate) fn command(settings: &Settings, default_run_dir: Option<&Path>) -> String {
    let resume = variable("resume");
    // Variables may have been set for this command alone.
    let variables = settings.set_by_variables().iter().filter(|variable| Some(*variable) != resume.as_ref());
    let set = variables.filter_map(|variable| Some(format!("{variable}={} ", quoted(&std::env::var_os(variable)?))));
    let mut command = set.collect::<String>() + &command_from(std::env::args_os().collect(), default_run_dir);
    // These flags are dropped from the command line below; if variables or files set them, they are overridden here.
    let is_set_otherwise =
        |name| settings.origin(name).is_some_and(|origin| origin.is_user() && *origin != Origin::Flag);
    if is_set_otherwise("resume") {
        command += " --resume auto";
    }
    if is_set_otherwise("take-over") {
        command += " --take-over=false";
    }
    command
}

fn command_from(arguments: Vec<OsString>, default_run_dir: Option<&Path>) -> String {
    let mut words = Vec::new();
    let mut skip_value = false;
    for (argument, flag) in arguments.iter().zip(hyphenate(arguments.clone())) {
        // These flags chose where the first start began, and made it take over. The next start resumes by itself.
        match flag.to_str() {
            _ if skip_value => skip_value = false,
            Some("--resume") => skip_value = true,
            Some("--take-over" | "--take-over=true" | "--take-over=false") => {}
            Some(flag) if flag.starts_with("--resume=") => {}
            _ => words.push(quoted(argument)),
        }
    }
    if let Some(run_dir) = default_run_dir {
        words.extend(["--run-dir".to_owned(), quoted(run_dir.as_os_str())]);
    }
    words.join(" ")
}

/// Quotes a word for a shell, whatever it contains.
pub(crate) fn quoted(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:,=+@%".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.as_bytes().iter().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        // This form is understood by Bash, zsh and the newest POSIX standard.
        _ => {
            let escaped = word.as_bytes().iter().map(|byte| match byte {
                byte if is_plain(byte) => char::from(*byte).to_string(),
                byte => format!("\\x{byte:02x}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resumed(words: &[&str], default_run_dir: Option<&str>) -> String {
        command_from(words.iter().map(OsString::from).collect(), default_run_dir.map(Path::new))
    }

    #[test]
    fn the_command_is_the_users_own() {
        let words = ["target/release/windlass", "train", "mnist", "--steps=10", "--run_dir", "runs/a"];
        assert_eq!(resumed(&words, None), words.join(" "));
    }

    #[test]
    fn a_directory_that_was_chosen_by_default_is_named() {
        assert_eq!(resumed(&["w", "launch", "mnist"], Some("runs/a b")), "w launch mnist --run-dir 'runs/a b'");
    }

    #[test]
    fn what_the_first_start_began_from_is_left_out() {
        for flags in [&["--resume", "never"][..], &["--resume=runs/b"], &["--take_over", "--resume", "auto"]] {
            let words = [&["w", "train", "mnist"], flags, &["--run-dir", "a"]].concat();
            assert_eq!(resumed(&words, None), "w train mnist --run-dir a");
        }
    }

    #[test]
    fn a_shell_reads_every_word_as_it_was() {
        let words = ["a b", "", "it's", "$HOME", "~", "*", "a\nb", "a;b", "\u{e9}t\u{e9}", "-x"];
        let mut words: Vec<OsString> = words.iter().map(OsString::from).collect();
        words.push(OsStr::from_bytes(b"\xff\x01").to_owned());
        let command = format!("printf '%s\\0' {}", command_from(words.clone(), None));
        let output = std::process::Command::new("bash").args(["-c", &command]).output().unwrap();
        let read: Vec<OsString> =
            output.stdout.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect();
        assert_eq!(read[..read.len() - 1], words);
    }
}
