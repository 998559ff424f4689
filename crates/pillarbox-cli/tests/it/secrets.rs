//! A password that stands in a URL is told nowhere, whatever is wrong with the command line.

use std::{collections::BTreeSet, process::Command};

use super::{pillarbox, stderr};

const SECRET: &str = "s3cret";
/// Nobody answers at this port.
const URL: &str = "postgres://shop:s3cret@127.0.0.1:1/shop";

fn help(path: &[String]) -> String {
    let arguments: Vec<_> = path.iter().map(String::as_str).chain(["--help"]).collect();
    String::from_utf8(pillarbox(&arguments).stdout).expect("help is text")
}

/// Every subcommand that does something, by what `--help` says.
fn subcommands(path: &[String]) -> Vec<Vec<String>> {
    let help = help(path);
    let Some((_, commands)) = help.split_once("\nCommands:\n") else { return vec![path.to_vec()] };
    let names = commands.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let below = names.filter(|name| *name != "help");
    below.flat_map(|name| subcommands(&[path, &[name.to_owned()]].concat())).collect()
}

fn told(path: &[String], arguments: &[&str], variable: Option<&str>) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    program.args(path).args(arguments).env_remove("RUST_LOG");
    program.envs(variable.map(|name| (name, URL)));
    let output = program.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let text = text.into_owned();
    assert!(!text.contains(SECRET), "{path:?} {arguments:?} {variable:?}: {text}");
    text
}

#[test]
fn no_subcommand_repeats_a_password_that_stands_in_the_wrong_place() {
    let subcommands = subcommands(&[]);
    assert!(subcommands.len() >= 15, "{subcommands:?}");
    for path in &subcommands {
        let help = help(path);
        let positional = help.lines().any(|line| line == "Arguments:");
        let said = told(path, &[URL], None);
        if !positional {
            assert!(said.contains("'postgres://…@127.0.0.1:1/shop'") && said.contains("--db URL"), "{path:?}: {said}");
        }
        told(path, &[&format!("--{URL}")], None);
        told(path, &["--verbose", URL, URL], None);
        let words = || help.split_whitespace();
        let takes = |value: &str| value.trim_start_matches('[').starts_with('<');
        let pairs = words().zip(words().skip(1)).filter(|(option, value)| option.starts_with("--") && takes(value));
        let options: BTreeSet<_> = pairs.map(|(option, _)| option).collect();
        for option in options {
            told(path, &[option, URL], None);
            told(path, &[&format!("{option}={URL}")], None);
        }
        for variable in help.split("[env: ").skip(1).filter_map(|rest| rest.split(['=', ']']).next()) {
            told(path, &[], Some(variable));
        }
        // What may hold a URL is not shown with its value.
        for option in help.split("<URL>").skip(1) {
            let variable = option.split("[env: ").nth(1).and_then(|rest| rest.split(['=', ']']).next());
            told(path, &["--help"], variable);
        }
    }
    told(&[], &[URL], None);
}

#[test]
fn a_setting_is_refused_without_what_it_was_to_be() {
    for set in [
        URL,
        &format!("{URL}?sslmode=require"),
        &format!("outbox.workers={URL}"),
        &format!("outbox.nonsense={URL}"),
        &format!("sinks.out.url={URL}"),
        &format!("http.listen={URL}"),
        &format!("messages.mode={URL}"),
        &format!("outbox.url={{ file = \"{URL}\" }}"),
        &format!("outbox.url={{ env = \"{URL}\" }}"),
    ] {
        let said = told(&["relay".into()], &["--set", set], None);
        assert!(said.contains("error: "), "{set}: {said}");
    }
    for variable in ["PILLARBOX__OUTBOX__WORKERS", "PILLARBOX__HTTP__LISTEN", "PILLARBOX__OUTBOX__NONSENSE"] {
        told(&["relay".into()], &[], Some(variable));
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.toml");
    for text in [
        format!("[outbox]\nurl = {URL}\n"),
        format!("[outbox]\nurl = \"{URL}\n"),
        format!("[outbox]\nworkers = \"{URL}\"\n"),
        format!("[log]\nformat = \"{URL}\"\n"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = told(&["relay".into()], &["--config", file.to_str().unwrap()], None);
        assert!(said.contains("error: "), "{said}");
    }
}

#[test]
fn help_and_version_go_to_stdout_and_what_is_refused_has_code_2() {
    for arguments in [&["--help"][..], &["--version"], &["status", "--help"]] {
        let output = pillarbox(arguments);
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments:?}");
        assert_eq!(stderr(&output), "");
    }
    for arguments in [&[][..], &["status"], &["status", URL], &[URL], &["relay", "--set", "x"]] {
        let output = pillarbox(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}
