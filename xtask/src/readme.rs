//! `cargo x readme`: the snippets of README.md compile and run.
//!
//! They are doctests of the `pillarbox` crate, on the item [`ITEM`]. Rustdoc passes in silence where it finds
//! no snippet, so the snippets are counted here too: each must have run.

use crate::{
    step::{Command, Failed},
    workspace,
};

/// The item of the `pillarbox` crate that carries the README in doctests.
const ITEM: &str = "ReadmeSnippets";

/// Checks that every Rust snippet is one that runs, runs them, and compares the numbers.
pub(crate) fn run() -> Result<(), Failed> {
    let snippets = snippets(&workspace::read("README.md")?)?;
    // For the whole workspace, as the other tests: a package alone may have its dependencies built anew, with
    // fewer features.
    let output = Command::cargo(["test", "--workspace", "--doc", "--", ITEM]).output()?;
    print!("{output}");
    let passed = passed(&output);
    if passed != snippets {
        return Err(Failed::new(format!(
            "README.md has {snippets} Rust snippets, but {passed} ran: is README.md included on the item `{ITEM}` of \
             the `pillarbox` crate?"
        )));
    }
    println!("{snippets} README snippets ran");
    Ok(())
}

/// How many Rust snippets a page has. One that would not run is an error.
fn snippets(page: &str) -> Result<usize, Failed> {
    let mut count = 0;
    let mut inside = false;
    for (index, line) in page.lines().enumerate() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        inside = !inside;
        if !inside {
            continue;
        }
        let words: Vec<_> = info.split([',', ' ']).filter(|word| !word.is_empty()).collect();
        let line = index + 1;
        match words.as_slice() {
            // Rustdoc takes a block without a language for Rust.
            [] => return Err(Failed::new(format!("README.md:{line}: this code block names no language"))),
            ["rust"] => count += 1,
            ["rust", ..] => {
                return Err(Failed::new(format!(
                    "README.md:{line}: snippets must compile and run, but this one is `{info}`"
                )));
            }
            _ => {}
        }
    }
    if count == 0 {
        return Err(Failed::new("README.md has no Rust snippet"));
    }
    Ok(count)
}

/// How many tests passed, by the summaries that the test harness prints.
fn passed(output: &str) -> usize {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<usize>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_snippets_are_counted_and_others_are_not() {
        let page = "# A\n```rust\nlet a = 1;\n```\n```sh\ncargo run\n```\n```rust\nlet b = 2;\n```\n";
        assert_eq!(snippets(page).unwrap(), 2);
    }

    #[test]
    fn a_snippet_that_would_not_run_is_refused_with_its_line() {
        for info in ["rust,ignore", "rust,no_run", "rust ignore", ""] {
            let words = snippets(&format!("text\n```{info}\nx\n```\n")).unwrap_err().to_string();
            assert!(words.starts_with("README.md:2:"), "{words}");
        }
        assert!(snippets("no code at all").is_err());
    }

    #[test]
    fn passes_of_several_harnesses_add_up() {
        let output = "running 2 tests\ntest result: ok. 2 passed; 0 failed\n\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(passed(output), 3);
    }
}
