//! `cargo x acceptance`: docs/acceptance.md tells the truth.
//!
//! The page has one section for each letter, `## W · Writing (10 rows)`, and in it a table of
//! `| id | behaviour | proved by |`. The last cell is
//! - `open`: nothing proves the row yet;
//! - names of tests in backticks, with commas between them: `` `a_test`, `another_test` ``;
//! - such names and what is missing: `` `a_test`; open: the rest ``.
//!
//! A name is a test function's, with as much of its path as one likes, or `doctest:FILE` for the doctests of a
//! source file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::{
    step::{Command, Failed},
    workspace,
};

const PAGE: &str = "docs/acceptance.md";
const SOURCES: [&str; 4] = ["crates", "examples", "bench", "xtask"];

/// Checks the page; with `--listed`, against what the test runner lists.
pub(crate) fn run(args: &[String]) -> Result<(), Failed> {
    let tests = match args {
        [] => written()?,
        [flag] if flag == "--listed" => listed()?,
        _ => return Err(Failed::new("usage: cargo x acceptance [--listed]")),
    };
    let page = workspace::read(PAGE)?;
    match check(&page, |name| is_proof(&tests, name)) {
        Ok(tally) => {
            let Tally { proved, partly, open } = tally;
            println!("{} rows: {proved} proved, {partly} in part, {open} open", proved + partly + open);
            Ok(())
        }
        Err(mistakes) => {
            for mistake in &mistakes {
                eprintln!("{PAGE}:{}: {}", mistake.line, mistake.words);
            }
            Err(Failed::new(format!("{} mistakes in {PAGE}", mistakes.len())))
        }
    }
}

/// How many rows stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    proved: usize,
    partly: usize,
    open: usize,
}

/// What is wrong, and in which line.
#[derive(Debug, PartialEq, Eq)]
struct Mistake {
    line: usize,
    words: String,
}

/// A section of the page.
struct Section {
    letter: char,
    line: usize,
    promised: usize,
    found: usize,
}

/// Reads the page; `exists` tells whether a test of a name is there.
fn check(page: &str, exists: impl Fn(&str) -> bool) -> Result<Tally, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    let mut sections: Vec<Section> = Vec::new();
    let mut tally = Tally::default();
    for (index, text) in page.lines().enumerate() {
        let line = index + 1;
        let mut wrong = |words: String| mistakes.push(Mistake { line, words });
        if let Some(heading) = text.strip_prefix("## ") {
            match section(heading) {
                Some((letter, _)) if sections.iter().any(|section| section.letter == letter) => {
                    wrong(format!("there is a section {letter} already"));
                }
                Some((letter, promised)) => sections.push(Section { letter, line, promised, found: 0 }),
                None => wrong("a section's heading looks like `## W · Writing (10 rows)`".into()),
            }
            continue;
        }
        let Some(cells) = cells(text) else {
            continue;
        };
        let (Some(section), [id, behaviour, proof]) = (sections.last_mut(), cells.as_slice()) else {
            wrong("a row has three cells, `| id | behaviour | proved by |`, and stands in a section".into());
            continue;
        };
        // Rows stand in order and none is missing, so that each id is there once and a removed one is noticed.
        section.found += 1;
        let expected = format!("{}{}", section.letter, section.found);
        if *id != expected {
            wrong(format!("expected the row {expected}, found `{id}`"));
        }
        if behaviour.is_empty() {
            wrong(format!("{id} has no behaviour"));
        }
        match proofs(proof) {
            Ok(proof) => {
                for name in proof.names.iter().filter(|name| !exists(name)) {
                    wrong(format!("{id} names the test `{name}`, which does not exist"));
                }
                match (proof.names.is_empty(), proof.open) {
                    (true, _) => tally.open += 1,
                    (false, true) => tally.partly += 1,
                    (false, false) => tally.proved += 1,
                }
            }
            Err(words) => wrong(format!("{id}: {words}")),
        }
    }
    for section in sections.iter().filter(|section| section.found != section.promised) {
        mistakes.push(Mistake {
            line: section.line,
            words: format!("the heading promises {} rows, and there are {}", section.promised, section.found),
        });
    }
    if sections.is_empty() {
        mistakes.push(Mistake { line: 1, words: "the page has no section".into() });
    }
    if mistakes.is_empty() { Ok(tally) } else { Err(mistakes) }
}

/// The letter and the number of rows of a heading such as `W · Writing (10 rows)`.
fn section(heading: &str) -> Option<(char, usize)> {
    let (letter, rest) = heading.split_once(" · ")?;
    let (_, count) = rest.rsplit_once(" (")?;
    let count = count.strip_suffix(" rows)")?.parse().ok()?;
    let mut letters = letter.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) if letter.is_ascii_uppercase() => Some((letter, count)),
        _ => None,
    }
}

/// The cells of a table's row; none for other lines and for the table's head.
fn cells(text: &str) -> Option<Vec<&str>> {
    let inner = text.trim().strip_prefix('|')?;
    let cells: Vec<_> = inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect();
    let is_head =
        cells[0] == "id" || cells.iter().all(|cell| !cell.is_empty() && cell.trim_matches(['-', ':']).is_empty());
    (!is_head).then_some(cells)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Proof<'a> {
    names: Vec<&'a str>,
    open: bool,
}

/// Reads a cell of proofs.
fn proofs(cell: &str) -> Result<Proof<'_>, String> {
    if cell == "open" {
        return Ok(Proof { names: Vec::new(), open: true });
    }
    let (names, open) = match cell.split_once("; open: ") {
        Some((names, rest)) => (names, !rest.trim().is_empty()),
        None => (cell, false),
    };
    let mut proof = Proof { names: Vec::new(), open };
    for name in names.split(',').map(str::trim) {
        match name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) {
            Some(name) if !name.is_empty() && !name.contains('`') => proof.names.push(name),
            _ => return Err("expected `open`, or names of tests in backticks with commas between them".into()),
        }
    }
    let mut seen = BTreeSet::new();
    match proof.names.iter().find(|name| !seen.insert(**name)) {
        Some(twice) => Err(format!("`{twice}` is named twice")),
        None => Ok(proof),
    }
}

/// The tests there are: full paths by the last part of the name.
type Tests = BTreeMap<String, Vec<String>>;

fn is_proof(tests: &Tests, name: &str) -> bool {
    if let Some(file) = name.strip_prefix("doctest:") {
        return workspace::read(file).is_ok_and(|source| has_doctest(&source));
    }
    let last = name.rsplit("::").next().unwrap_or(name);
    tests.get(last).is_some_and(|paths| {
        // What the sources tell is the last part alone; the runner knows the whole path.
        paths.iter().any(|path| path == last || path == name || path.ends_with(&format!("::{name}")))
    })
}

/// Every test function of the sources, by its last name.
fn written() -> Result<Tests, Failed> {
    let mut tests = Tests::new();
    for file in SOURCES.iter().flat_map(workspace::rust_files) {
        let source = fs::read_to_string(&file).map_err(|error| Failed::new(format!("{}: {error}", file.display())))?;
        for name in functions(&source) {
            tests.insert(name.to_owned(), vec![name.to_owned()]);
        }
    }
    Ok(tests)
}

/// Every test that the runner lists and does not ignore, by the last part of its path.
fn listed() -> Result<Tests, Failed> {
    let lines = Command::cargo(["nextest", "list", "--workspace", "--message-format", "oneline"]).output()?;
    let mut tests = Tests::new();
    for (_, path) in lines.lines().filter_map(|line| line.split_once(' ')) {
        let last = path.rsplit("::").next().unwrap_or(path);
        tests.entry(last.to_owned()).or_default().push(path.to_owned());
    }
    Ok(tests)
}

/// The functions of a source file. Those of a conformance suite are tests by way of a macro, so that an
/// attribute is not asked for.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let code = line.split("//").next().unwrap_or("").trim_start();
        let (before, after) = code.split_once("fn ")?;
        let is_item =
            before.split_whitespace().all(|word| ["async", "const"].contains(&word) || word.starts_with("pub"));
        let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
        (is_item && end > 0).then(|| &after[..end])
    })
}

fn has_doctest(source: &str) -> bool {
    source.lines().any(|line| {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        doc.is_some_and(|doc| doc.trim_start().starts_with("```"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Acceptance\n\n## W · Writing (2 rows)\n| id | behaviour | proved by |\n|---|---|---|\n";

    fn page(rows: &str) -> Result<Tally, Vec<Mistake>> {
        check(&format!("{HEAD}{rows}"), |name| name == "a_test" || name == "b_test")
    }

    fn mistake(rows: &str) -> (usize, String) {
        let mut mistakes = page(rows).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        let Mistake { line, words } = mistakes.remove(0);
        (line, words)
    }

    #[test]
    fn rows_are_counted_by_where_they_stand() {
        let tally = page("| W1 | one | open |\n| W2 | two | `a_test`, `b_test` |\n\nwords\n").unwrap();
        assert_eq!(tally, Tally { proved: 1, partly: 0, open: 1 });
        let tally = page("| W1 | one | `a_test`; open: the rest |\n| W2 | two | `a_test` |\n").unwrap();
        assert_eq!(tally, Tally { proved: 1, partly: 1, open: 0 });
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let cases = [
            ("| W1 | one | open |\n| W2 | two | `gone` |\n", 7, "`gone`, which does not exist"),
            ("| W1 | one | open |\n| W2 | two |  |\n", 7, "expected `open`"),
            ("| W1 | one | open |\n| W2 | two | a_test |\n", 7, "expected `open`"),
            ("| W1 | one | open |\n| W2 | two | `a_test` `b_test` |\n", 7, "expected `open`"),
            ("| W1 | one | open |\n| W2 | two | `a_test`, `a_test` |\n", 7, "named twice"),
            ("| W1 | one | open |\n| W1 | two | open |\n", 7, "expected the row W2, found `W1`"),
            ("| W1 | one | open |\n| w2 | two | open |\n", 7, "expected the row W2, found `w2`"),
            ("| W1 | one | open |\n| W2 |  | open |\n", 7, "no behaviour"),
            ("| W1 | one | open |\n", 3, "promises 2 rows, and there are 1"),
            ("| W1 | one | open |\n| W2 | two | open |\n## Words\n", 8, "heading looks like"),
            ("| W1 | one | open |\n| W2 | two | open |\n## W · Again (0 rows)\n", 8, "a section W already"),
        ];
        for (rows, line, words) in cases {
            let found = mistake(rows);
            assert!(found.0 == line && found.1.contains(words), "{rows}: {found:?}");
        }
        assert!(check("| W1 | one | open |\n", |_| true).is_err());
        assert!(page("| W1 | one |\n| W2 | two | open |\n").is_err());
    }

    #[test]
    fn functions_are_found_whatever_stands_before_them() {
        let source = "fn a() {}\n    pub(crate) async fn b<T>(\n// fn c() {}\nlet fnord = of_fn (1);\nf: impl Fn(u8)\n\
                      pub async fn d_e2(\n";
        assert_eq!(functions(source).collect::<Vec<_>>(), ["a", "b", "d_e2"]);
    }

    #[test]
    fn a_name_may_carry_as_much_of_its_path_as_one_likes() {
        let tests = Tests::from([("a_test".to_owned(), vec!["domain::event::tests::a_test".to_owned()])]);
        for name in ["a_test", "tests::a_test", "domain::event::tests::a_test"] {
            assert!(is_proof(&tests, name), "{name}");
        }
        for name in ["other::a_test", "s::a_test", "test", "b_test"] {
            assert!(!is_proof(&tests, name), "{name}");
        }
    }

    #[test]
    fn a_doctest_is_a_code_block_in_a_doc_comment() {
        assert!(has_doctest("/// ```compile_fail\n/// x\n/// ```\n"));
        assert!(!has_doctest("// ```\nlet a = \"```\";\n"));
    }
}
