//! `cargo x book`: the book and the other pages hold together.
//!
//! Every chapter is in SUMMARY.md and the other way round; every relative link leads somewhere, also its `#anchor`; every
//! code block names a language that is known; and Rust is among the doctests, none of it left out. All this needs no
//! mdBook, which takes minutes to install. Where mdBook is installed, the book is built as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use crate::{
    step::{Command, Failed, Quiet},
    workspace,
};

const BOOK: &str = "docs/book/src";
/// Where the chapters are taken for doctests.
const DOCTESTS: &str = "crates/pillarbox/src/lib.rs";
const LANGUAGES: [&str; 9] = ["console", "json", "python", "rust", "sh", "sql", "text", "toml", "yaml"];

/// Checks the pages, and builds the book where that is possible.
pub(crate) fn run() -> Result<(), Failed> {
    let pages = read()?;
    let mistakes = check(&pages, &workspace::read(DOCTESTS)?, |path| workspace::root().join(path).exists());
    for mistake in &mistakes {
        eprintln!("{mistake}");
    }
    if !mistakes.is_empty() {
        return Err(Failed::new(format!("{} mistakes in the pages", mistakes.len())));
    }
    println!("{} pages: chapters, links, anchors and code blocks are right", pages.len());
    if Command::program("mdbook").args(&["--version".to_owned()]).quiet() == Quiet::Failed {
        println!("mdBook is not installed: the book is checked, and not built");
        return Ok(());
    }
    Command::program("mdbook").args(&["build", "docs/book"].map(str::to_owned)).run()
}

/// The pages by their paths in the checkout.
type Pages = BTreeMap<PathBuf, String>;

fn read() -> Result<Pages, Failed> {
    let mut pages = Pages::new();
    for folder in ["", "docs", BOOK, "bench/peers", "deploy"] {
        for path in workspace::list(folder) {
            if path.extension().is_some_and(|extension| extension == "md") {
                let path = path.strip_prefix(workspace::root()).unwrap_or(&path).to_path_buf();
                pages.insert(path.clone(), workspace::read(&path)?);
            }
        }
    }
    Ok(pages)
}

/// What is wrong, each with its page and line. `exists` tells whether a path of the checkout is there.
fn check(pages: &Pages, doctests: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut mistakes = Vec::new();
    let read: BTreeMap<_, _> = pages.iter().map(|(path, text)| (path.as_path(), Page::read(text))).collect();
    for (path, page) in &read {
        let mut wrong = |line: usize, words: String| mistakes.push(format!("{}:{line}: {words}", path.display()));
        let in_book = path.starts_with(BOOK);
        for (line, info) in &page.blocks {
            let mut words = info.split([',', ' ']).filter(|word| !word.is_empty());
            match words.next() {
                None => wrong(*line, "this code block names no language".into()),
                Some(language) if !LANGUAGES.contains(&language) => {
                    wrong(*line, format!("`{language}` is none of the languages {}", LANGUAGES.join(", ")));
                }
                Some("rust") if in_book => {
                    if let Some(flag) = words.next() {
                        wrong(*line, format!("code of the book compiles and runs, but this is `{flag}`"));
                    }
                    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    if !doctests.contains(&format!("/{BOOK}/{name}\"")) {
                        wrong(*line, format!("this is no doctest: name the chapter in {DOCTESTS}"));
                    }
                }
                Some(_) => {}
            }
        }
        for (line, target) in &page.links {
            let (file, anchor) = target.split_once('#').map_or((*target, None), |(file, anchor)| (file, Some(anchor)));
            let to = if file.is_empty() { path.to_path_buf() } else { joined(path, file) };
            if !read.contains_key(to.as_path()) && !exists(&to) {
                wrong(*line, format!("the link `{target}` leads to {}, which is not there", to.display()));
            } else if in_book && !to.starts_with(BOOK) {
                wrong(*line, format!("the link `{target}` leads out of the book, whose HTML has nothing else"));
            } else if let Some(anchor) = anchor
                && read.get(to.as_path()).is_none_or(|page| !page.anchors.contains(anchor))
            {
                wrong(*line, format!("{} has no heading `#{anchor}`", to.display()));
            }
        }
        for (line, file) in &page.includes {
            if !exists(&joined(path, file)) {
                wrong(*line, format!("`{file}` is included, and is not there"));
            }
        }
    }
    mistakes.extend(chapters(&read));
    mistakes
}

/// What is in the folder of the book and not in its summary, or twice. What is the other way round is a broken link.
fn chapters(pages: &BTreeMap<&Path, Page<'_>>) -> Vec<String> {
    let summary = Path::new(BOOK).join("SUMMARY.md");
    let Some(page) = pages.get(summary.as_path()) else {
        return vec![format!("{}: the book has no summary", summary.display())];
    };
    let named: Vec<_> = page.links.iter().map(|(_, target)| joined(&summary, target)).collect();
    let count = |path: &Path| named.iter().filter(|chapter| *chapter == path).count();
    let chapters = pages.keys().filter(|path| path.starts_with(BOOK) && **path != summary);
    chapters
        .filter(|path| count(path) != 1)
        .map(|path| format!("{}: the summary names this chapter {} times", path.display(), count(path)))
        .collect()
}

/// What matters of a page, each with its line.
#[derive(Debug, Default)]
struct Page<'a> {
    links: Vec<(usize, &'a str)>,
    includes: Vec<(usize, &'a str)>,
    blocks: Vec<(usize, &'a str)>,
    anchors: BTreeSet<String>,
}

impl<'a> Page<'a> {
    fn read(text: &'a str) -> Self {
        let mut page = Self::default();
        let mut inside = false;
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(info) = text.trim_start().strip_prefix("```") {
                inside = !inside;
                if inside {
                    page.blocks.push((line, info.trim()));
                }
                continue;
            }
            // mdBook includes within code blocks, too.
            if let Some(include) = text.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
                page.includes.push((line, include.split(':').next().unwrap_or(include)));
            }
            if inside {
                continue;
            }
            if let Some(heading) = text.strip_prefix('#') {
                page.add_anchor(&anchor(heading.trim_start_matches('#').trim()));
            }
            // What stands in backticks is shown, not followed.
            for shown in text.split('`').step_by(2) {
                for rest in shown.split("](").skip(1) {
                    let target = rest.split([')', ' ']).next().unwrap_or(rest);
                    if !target.contains("://") && !target.starts_with("mailto:") {
                        page.links.push((line, target));
                    }
                }
            }
        }
        page
    }

    /// A heading that comes again has a number.
    fn add_anchor(&mut self, anchor: &str) {
        let mut candidate = anchor.to_owned();
        let mut number = 0;
        while !self.anchors.insert(candidate) {
            number += 1;
            candidate = format!("{anchor}-{number}");
        }
    }
}

/// A heading as links name it, by mdBook and by the forges alike.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The path that a page names, from the root of the checkout.
fn joined(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "# Summary\n\n- [One](one.md)\n  - [Two](two.md)\n";
    const DOCTESTS: &str = "One: \"../../../docs/book/src/one.md\",";

    /// The mistakes of a book of two chapters, of which the first has this text.
    fn mistakes(one: &str) -> Vec<String> {
        mistakes_of(SUMMARY, one, "# Two\n\n## A part, of `two`\n\n## Twice\n\n## Twice\n")
    }

    fn mistakes_of(summary: &str, one: &str, two: &str) -> Vec<String> {
        let book = Path::new(BOOK);
        let pages = [(book.join("SUMMARY.md"), summary), (book.join("one.md"), one), (book.join("two.md"), two)];
        let pages = pages.map(|(path, text)| (path, text.to_owned())).into();
        check(&pages, DOCTESTS, |path| path == Path::new("docs/figures.md"))
    }

    #[test]
    fn a_book_that_holds_together_has_no_mistakes() {
        let one = "# One\n[two](two.md), [its part](two.md#a-part-of-two), [below](#below), [twice](two.md#twice-1)\n\
                   [web](https://example.org/x), `[shown](gone.md)`\n\n## Below\n{{#include ../../figures.md:2:}}\n\
                   ```rust\n# let a = [1](gone.md);\n```\n```sh\ncargo run\n```\n";
        assert_eq!(mistakes(one), [""; 0]);
    }

    #[test]
    fn mistakes_are_told_with_page_and_line() {
        for (one, line, words) in [
            ("[three](three.md)", 1, "leads to docs/book/src/three.md, which is not there"),
            ("\n[up](../../../gone.md)", 2, "leads to gone.md, which is not there"),
            ("[part](two.md#another-part)", 1, "two.md has no heading `#another-part`"),
            ("[part](two.md#twice-2)", 1, "two.md has no heading `#twice-2`"),
            ("# One\n[below](#below)", 2, "one.md has no heading `#below`"),
            ("[figures](../../figures.md)", 1, "out of the book"),
            ("# One\n{{#include ../../gone.md}}", 2, "is included, and is not there"),
            ("```toml\n{{#include ../../gone.toml}}\n```", 2, "is included, and is not there"),
            ("```\nx\n```", 1, "names no language"),
            ("```rsut\nx\n```", 1, "`rsut` is none of the languages"),
            ("```rust,ignore\nx\n```", 1, "but this is `ignore`"),
        ] {
            let found = mistakes(one);
            let place = format!("docs/book/src/one.md:{line}: ");
            let is_told = matches!(&found[..], [it] if it.starts_with(&place) && it.contains(words));
            assert!(is_told, "{one}: {found:?}");
        }
    }

    #[test]
    fn rust_in_a_chapter_that_is_no_doctest_is_found() {
        let found = mistakes_of(SUMMARY, "# One", "```rust\nlet a = 1;\n```");
        assert!(matches!(&found[..], [it] if it.contains("two.md:1: this is no doctest")), "{found:?}");
    }

    #[test]
    fn a_chapter_that_the_summary_forgets_or_repeats_is_found() {
        let found = mistakes_of("[One](one.md)", "# One", "# Two");
        assert!(
            matches!(&found[..], [it] if it.contains("two.md: the summary names this chapter 0 times")),
            "{found:?}"
        );
        let found = mistakes_of("[One](one.md) [Two](two.md) [Two](two.md)", "# One", "# Two");
        assert!(
            matches!(&found[..], [it] if it.contains("two.md: the summary names this chapter 2 times")),
            "{found:?}"
        );
        let found = mistakes_of(&format!("{SUMMARY}- [Three](three.md)"), "# One", "# Two");
        assert!(matches!(&found[..], [it] if it.contains("SUMMARY.md:5: ")), "{found:?}");
    }
}
