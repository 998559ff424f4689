//! A case that is not in the macro's list would never run, and nobody would notice.

use std::collections::BTreeSet;

#[test]
fn every_case_of_the_exam_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance");
    let list = std::fs::read_to_string(format!("{folder}/mod.rs")).unwrap();
    let list: BTreeSet<&str> = list.lines().map(|line| line.trim().trim_end_matches(',')).collect();
    let mut cases = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn "));
        for name in names.filter_map(|rest| rest.split_once("<B: Backend>")).map(|(name, _)| name) {
            assert!(list.contains(name), "{name} is missing in the list of conformance!");
            cases += 1;
        }
    }
    assert!(cases > 90);
}
