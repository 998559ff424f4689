//! The metrics that dashboards and alerts ask for are those that there are.

use std::collections::BTreeSet;

use crate::workspace;

/// Where metrics have their names.
const NAMES: [&str; 2] = ["crates/pillarbox-core/src/observe/mod.rs", "crates/pillarbox-inbox/src/consumer/observe.rs"];
const PREFIX: &str = "pillarbox_";

/// The full names of all metrics: the constants of the module `name`.
fn known(source: &str) -> BTreeSet<String> {
    let constants = source.lines().filter_map(|line| line.trim().strip_prefix("pub const "));
    let values = constants.filter_map(|constant| constant.split_once(": &str = \"")?.1.strip_suffix("\";"));
    values.map(|name| format!("{PREFIX}{name}")).collect()
}

/// The names in a text that begin with the prefix.
fn asked_for(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names = text.split(|c| !is_part(c)).filter(|name| name.starts_with(PREFIX));
    names.filter(|name| *name != PREFIX).collect()
}

/// Whether there is such a metric, or such a part of a histogram.
fn is_known(known: &BTreeSet<String>, name: &str) -> bool {
    let parts = ["_bucket", "_sum", "_count"].into_iter().filter_map(|end| name.strip_suffix(end));
    known.contains(name) || parts.into_iter().any(|name| name.ends_with("_seconds") && known.contains(name))
}

#[test]
fn dashboards_and_alerts_ask_for_metrics_that_there_are() {
    let known: BTreeSet<_> = NAMES.iter().flat_map(|file| known(&workspace::read(file).unwrap())).collect();
    for one in ["pillarbox_delivered_total", "pillarbox_consumer_lag"] {
        assert!(known.contains(one), "{known:?}");
    }
    let dashboards =
        workspace::list("deploy").into_iter().filter(|path| path.extension().is_some_and(|it| it == "json"));
    let pages = ["docs/book/src/alerts.md", "docs/book/src/relay.md", "deploy/README.md"].map(Into::into);
    let pages: Vec<_> = dashboards.chain(pages).collect();
    assert!(pages.len() > 3, "no dashboard in deploy");
    for page in pages {
        let text = workspace::read(&page).unwrap();
        // Pages speak of crates, too.
        let is_crate = |name: &str| workspace::root().join("crates").join(name.replace('_', "-")).is_dir();
        let asked_for = asked_for(&text).into_iter().filter(|name| !is_crate(name));
        let unknown: Vec<_> = asked_for.filter(|name| !is_known(&known, name)).collect();
        assert!(unknown.is_empty(), "{}: {NAMES:?} have no {unknown:?}", page.display());
    }
}

#[test]
fn names_are_found_and_told_apart() {
    let source =
        "    /// Docs.\n    pub const DEAD: &str = \"dead_total\";\n    pub const TIME: &str = \"handler_seconds\";\n";
    let known = known(source);
    let text = r#"sum(pillarbox_dead_total{a="b"}) / pillarbox_handler_seconds_bucket, `pillarbox_`, x_pillarbox_y"#;
    let asked_for = asked_for(text);
    assert_eq!(asked_for, ["pillarbox_dead_total", "pillarbox_handler_seconds_bucket"].into());
    assert!(asked_for.iter().all(|name| is_known(&known, name)));
    for unknown in ["pillarbox_deaf_total", "pillarbox_dead_total_sum", "pillarbox_handler_seconds_buckets"] {
        assert!(!is_known(&known, unknown), "{unknown}");
    }
}
