//! Output for the shell and for `man`: completions, manual pages, and the version of the build.

use std::fs;

use insta::assert_snapshot;

use crate::process::windlass;

#[test]
fn every_shell_gets_a_script_that_knows_commands_models_and_flags() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let told = windlass(&format!("completions {shell}")).run().succeeded();
        for word in ["windlass", "launch", "seq2seq", "learning-rate", "checkpoint"] {
            assert!(told.stdout.contains(word), "no {word} for {shell}");
        }
        assert_eq!(told.stderr, "");
    }
}

#[test]
fn bash_completes_with_the_script() {
    let script = windlass("completions bash").run().succeeded();
    fs::write(script.directory().join("windlass.bash"), &script.stdout).unwrap();
    let completes = |line: &str| {
        let words = line.split(' ').map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let last = line.split(' ').count() - 1;
        let text = format!(
            "bash --norc -c \"source ./windlass.bash; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _windlass windlass '{}' ''; printf '%s ' \\\"\\${{COMPREPLY[@]}}\\\"\"",
            line.rsplit(' ').next().unwrap_or_default()
        );
        script.shell(&text).run().succeeded().stdout.trim().to_owned()
    };
    assert_eq!(completes("windlass lau"), "launch");
    assert_eq!(completes("windlass train mn"), "mnist");
    assert_eq!(completes("windlass train mnist --learning-rate-s"), "--learning-rate-schedule");
}

#[test]
fn a_shell_that_is_not_known_is_refused() {
    assert_snapshot!(windlass("completions tcsh").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: invalid value 'tcsh' for '<SHELL>'
      [possible values: bash, elvish, fish, powershell, zsh]

      tip: a similar value exists: 'zsh'

    For more information, try '--help'.
    ");
}

#[test]
fn the_manual_has_a_page_for_every_command_and_model() {
    let main = windlass("man").run().succeeded();
    assert!(main.stdout.contains(".TH windlass 1") && main.stdout.contains("windlass\\-launch(1)"), "{main}");
    let told = windlass("man --dir pages/man1").run().succeeded();
    let page = |name: &str| fs::read_to_string(told.directory().join("pages/man1").join(name)).unwrap();
    assert_eq!(page("windlass.1").trim_end(), main.stdout.trim_end());
    assert!(page("windlass-train-mnist.1").contains("learning\\-rate\\-schedule"));
    assert!(page("windlass-checkpoint-list.1").contains("List the checkpoints"));
    let written = fs::read_dir(told.directory().join("pages/man1")).unwrap().count();
    assert_eq!(told.stdout, format!("wrote {written} manual pages to pages/man1\n"));
}

#[test]
fn a_directory_for_the_manual_that_cannot_be_made_is_named() {
    assert_snapshot!(windlass("man --dir file/man1").with_file("file", "").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: cannot write manual pages to file/man1: Not a directory (os error 20)
    ");
}

#[test]
fn the_short_version_is_one_line() {
    assert_eq!(windlass("-V").run().succeeded().stdout, "windlass 0.1.0\n");
}

#[test]
fn the_long_version_tells_the_commit_the_features_and_the_processor() {
    let told = windlass("--version").run().succeeded();
    let lines: Vec<&str> = told.stdout.lines().collect();
    assert_eq!(lines[0], "windlass 0.1.0", "{told}");
    let value = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {told}")).trim()
    };
    let is_commit = |text: &str| text == "unknown" || text.chars().all(|letter| letter.is_ascii_hexdigit());
    assert!(is_commit(value("commit")), "{told}");
    assert!(value("features").contains("mimalloc"), "{told}");
    assert!(value("target").contains(std::env::consts::ARCH), "{told}");
    #[cfg(target_arch = "x86_64")]
    assert!(value("CPU level").contains("needs x86-64-v") && value("CPU level").contains("has x86-64-v"), "{told}");
}
