//! What is asked for in the wrong way.

use tempfile::TempDir;

use super::saga;

#[test]
fn bad_input_is_told_with_what_to_do() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("order.db"), "").unwrap();
    let used = folder.path().to_str().unwrap();
    for (arguments, told) in [
        (&["--kill-every", "1h"][..], "write 300ms, 6s or 5m"),
        (&["--rate", "0"], "1..=10000"),
        (&["--folder", used], "give an empty folder"),
        (&["verdict", "--folder", "/nowhere", "--orders", "1", "--seed", "1"], "/nowhere/order.db can't be opened"),
        (&["order"], "--nats"),
    ] {
        let (output, words) = saga(arguments);
        assert!(!output.status.success() && words.contains(told), "{arguments:?}: {words}");
    }
}
