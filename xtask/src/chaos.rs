//! `cargo x chaos`: processes in a storm, for as long as one likes.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    servers,
    step::{Command, Failed},
};

const USAGE: &str = "\
usage: cargo x chaos [--minutes N] [--seed S] [--backend postgres|mariadb|sqlite]

Four processes on one database write and deliver, while a driver kills, pauses, stops and starts them, restarts the
server and cuts connections. Afterwards a checker reads what was committed and what was delivered.

  --minutes N    how long the storm lasts; 0.5 is half a minute [default: 1]
  --seed S       repeats the driver's part of a run [default: another one each time]
  --backend B    the database, on a server of the run's own [default: postgres]";

const TEST: &str = "storm::chaos::processes_in_a_storm_lose_nothing_and_keep_each_keys_order";

/// What the arguments say.
#[derive(Debug, PartialEq)]
struct Storm {
    seconds: u64,
    seed: Option<u64>,
    package: &'static str,
}

pub(crate) fn run(args: &[String]) -> Result<(), Failed> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let storm = parse(args)?;
    servers::packages()?;
    let seed = storm.seed.unwrap_or_else(fresh_seed);
    Command::cargo(["test", "--quiet", "--package", storm.package, "--test", "processes", "--"])
        .args(&["--exact", TEST, "--nocapture"].map(str::to_owned))
        .env("PILLARBOX_CHAOS_SECONDS", storm.seconds.to_string())
        .env("PILLARBOX_CHAOS_SEED", seed.to_string())
        .run()
}

fn parse(args: &[String]) -> Result<Storm, Failed> {
    let mut storm = Storm { seconds: 60, seed: None, package: "pillarbox-postgres" };
    let mut args = args.iter().map(String::as_str);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| Failed::new(format!("`{name}` has no value\n\n{USAGE}")))?;
        let bad = |allowed: &str| Failed::new(format!("`{name}` is `{value}`, and {allowed} is expected"));
        match name {
            "--minutes" => storm.seconds = seconds(value).ok_or_else(|| bad("a number from 0.1 to 1440"))?,
            "--seed" => storm.seed = Some(value.parse().map_err(|_| bad("a whole number"))?),
            "--backend" => {
                storm.package = match value {
                    "postgres" => "pillarbox-postgres",
                    // MySQL's store, on MariaDB.
                    "mariadb" | "mysql" => "pillarbox-mysql",
                    "sqlite" => "pillarbox-sqlite",
                    _ => return Err(bad("`postgres`, `mariadb` or `sqlite`")),
                }
            }
            _ => return Err(Failed::new(format!("there is no option `{name}`\n\n{USAGE}"))),
        }
    }
    Ok(storm)
}

/// Minutes as seconds.
fn seconds(minutes: &str) -> Option<u64> {
    let minutes: f64 = minutes.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is small and positive")]
    (0.1..=1440.0).contains(&minutes).then(|| (minutes * 60.0).round() as u64)
}

fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::from(since.subsec_nanos()) ^ since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Result<Storm, String> {
        let args: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        parse(&args).map_err(|failed| failed.to_string())
    }

    #[test]
    fn options_are_read() {
        let storm = given("--minutes 0.5 --seed 7 --backend mysql");
        assert_eq!(storm, Ok(Storm { seconds: 30, seed: Some(7), package: "pillarbox-mysql" }));
        assert_eq!(given("--backend mariadb").map(|storm| storm.package), Ok("pillarbox-mysql"));
        assert_eq!(given(""), Ok(Storm { seconds: 60, seed: None, package: "pillarbox-postgres" }));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_what_is_allowed() {
        for (text, words) in [
            ("--minutes 0", "a number from 0.1 to 1440"),
            ("--minutes ten", "a number from 0.1 to 1440"),
            ("--seed -1", "a whole number"),
            ("--backend oracle", "`postgres`, `mariadb` or `sqlite`"),
            ("--minutes", "has no value"),
            ("--hours 1", "there is no option `--hours`"),
        ] {
            let error = given(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
