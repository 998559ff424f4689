//! Chaos: four processes that write and deliver, and a driver that kills, pauses, stops and starts them, restarts the
//! server and cuts connections. Afterwards the [proof](crate::proof) is read.
//!
//! The environment says how long and which: `PILLARBOX_CHAOS_SECONDS` and `PILLARBOX_CHAOS_SEED`, which `cargo x chaos`
//! sets. The seed decides what the driver does, in which order and with which waits in between, and what each process draws;
//! what they are doing at that moment, it does not.

mod node;

use std::{
    fs::File,
    io::Write as _,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Application, Failure, Ledger, Process, Restart, Site, Stage, now};
use crate::proof::{Line, Story, Violation, check};

const PROCESSES: usize = 4;
const LEASE: Duration = Duration::from_secs(3);

/// Long enough for everything that was written to be delivered, on a busy machine.
const REST: Duration = Duration::from_mins(2);

/// A site whose server can be shaken, if it has one.
pub trait Stormy: Site {
    /// Whether there is a server.
    const SERVER: bool = false;

    /// Stops the server and starts it again.
    fn restart(&mut self, _how: Restart) {}

    /// Ends one connection to the database, any but the asking one.
    fn cut(&self, _store: &<Self::App as Application>::Store) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }
}

/// O9, D11, P2, P4: nothing lost, nothing from a transaction that was rolled back, each key in order, no stale settle.
pub fn processes_in_a_storm_lose_nothing_and_keep_each_keys_order<S: Stormy>() {
    let seconds = number("PILLARBOX_CHAOS_SECONDS").unwrap_or(10);
    let seed = number("PILLARBOX_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("chaos for {seconds} s with the seed {seed}");
    let mut storm = Storm::<S>::new(seed);
    storm.rage(Duration::from_secs(seconds));
    let story = storm.calm();
    let mut report = check(story);
    report.violations.extend(storm.left_behind());
    assert!(report.violations.is_empty(), "{report}\nseed: {seed}");
    println!("{report}\nseed: {seed}");
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, and not a number")))
}

/// A process, as the driver knows it.
enum Slot {
    Running(Process),
    Paused { process: Process, until: Instant },
    Stopping(Process),
    Down { until: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    Bad,
}

/// How a process that was told to stop has ended. A server that is away is no reason for a bad end: it says so in the
/// log, and leaves all the same.
fn end_of(process: &mut Process) -> Option<End> {
    process.has_ended().then(|| if process.end() { End::Good } else { End::Bad })
}

struct Storm<S: Site> {
    // Before the stage: the processes end first.
    slots: Vec<Slot>,
    lives: u64,
    seed: u64,
    random: fastrand::Rng,
    ledger: File,
    stage: Stage<S>,
}

impl<S: Stormy> Storm<S> {
    fn new(seed: u64) -> Self {
        let stage = Stage::<S>::new();
        let ledger = File::options().append(true).create(true).open(stage.path("ledger")).unwrap();
        let random = fastrand::Rng::with_seed(seed);
        let mut storm = Self { slots: Vec::new(), lives: 0, seed, random, ledger, stage };
        for _ in 0..PROCESSES {
            let process = storm.start();
            storm.slots.push(Slot::Running(process));
        }
        storm.stage.until("a first delivery", |ledger| ledger.of("end").next().map(drop));
        storm
    }

    fn rage(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.tend();
            let slot = self.random.usize(..PROCESSES);
            match self.random.u32(..100) {
                0..20 => self.kill(slot),
                20..40 => self.pause(slot),
                40..55 => self.stop(slot),
                55..80 if S::SERVER => {
                    let store = self.stage.store();
                    self.stage.ask("a cut", || self.stage.site.cut(store));
                    self.note("cut", "-");
                }
                80..86 if S::SERVER => {
                    let how = if self.random.bool() { Restart::Fast } else { Restart::Killed };
                    // Before it is down: what comes to nothing meanwhile has a cause.
                    self.note("away", "-");
                    self.stage.site.restart(how);
                    self.note("restarted", "-");
                }
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(self.random.u64(50..600)));
        }
    }

    /// Ends the faults and the writing, and waits for the rest to be delivered. Then everybody leaves.
    fn calm(&mut self) -> Story {
        let begun = Instant::now();
        loop {
            self.tend();
            if self.slots.iter().all(|slot| matches!(slot, Slot::Running(_))) {
                break;
            }
            // No reason to wait for those whose time to rest has not come.
            for slot in &mut self.slots {
                if let Slot::Paused { until, .. } | Slot::Down { until } = slot {
                    *until = Instant::now();
                }
            }
            assert!(begun.elapsed() < REST, "a process does not stop");
            std::thread::sleep(Duration::from_millis(5));
        }
        let names: Vec<_> = self.running().map(|process| process.name().to_owned()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        self.stage.stop_writing(&names);
        while self.stage.pending() > 0 && begun.elapsed() < REST {
            std::thread::sleep(Duration::from_millis(20));
        }
        // One that was killed with nothing of its own keeps nobody from leaving before its lease has lapsed.
        self.stage.until_alone(&names);
        names.iter().for_each(|name| self.stage.say(&format!("stop-{name}")));
        let mut slots = std::mem::take(&mut self.slots);
        for slot in &mut slots {
            if let Slot::Running(process) = slot
                && !process.end()
            {
                self.note("broke", process.name());
            }
        }
        let lines = Ledger::read(&self.stage.path("ledger")).into_lines();
        let orders = self.stage.orders();
        let mut committed = File::create(self.stage.path("orders")).unwrap();
        orders.iter().for_each(|order| writeln!(committed, "{order}").unwrap());
        Story { orders, lines, slack: Duration::from_millis(300), ..Story::default() }
    }

    /// What should not be in the database when everything is delivered and everybody has left.
    fn left_behind(&self) -> Vec<Violation> {
        let questions = [
            ("pending events", "select count(*) from outbox_event where status in ('NEW', 'RETRY')"),
            ("dead events", "select count(*) from outbox_event where status = 'DEAD'"),
            ("held keys", "select count(*) from outbox_hold"),
            ("nodes", "select count(*) from outbox_instance"),
            ("owned partitions", "select count(*) from outbox_partition where owner is not null"),
            (
                "events too few or too many",
                "select (select count(*) from orders) - (select count(*) from outbox_event)",
            ),
        ];
        let left = questions.into_iter().map(|(what, sql)| (what, self.stage.number(sql)));
        left.filter(|(_, count)| *count != 0)
            .map(|(what, count)| Violation::Unclean(format!("{what}: {count}")))
            .collect()
    }

    fn start(&mut self) -> Process {
        self.lives += 1;
        let name = format!("life-{}", self.lives);
        // Not drawn from the driver's numbers: when a process starts is a matter of the machine.
        let seed = fastrand::Rng::with_seed(self.seed.wrapping_add(self.lives)).u64(..);
        let task = json!({ "role": "chaos", "lease": LEASE.as_millis(), "seed": seed });
        self.stage.start(&name, task)
    }

    fn kill(&mut self, slot: usize) {
        let until = self.soon(1_000);
        if let Slot::Running(process) | Slot::Stopping(process) = &mut self.slots[slot] {
            if process.has_ended() {
                // How it did is looked at first.
                return;
            }
            process.kill();
            let name = process.name().to_owned();
            self.slots[slot] = Slot::Down { until };
            self.note("killed", &name);
        }
    }

    /// For less than its lease, or for more.
    fn pause(&mut self, slot: usize) {
        let until = self.soon(LEASE.as_millis() * 2);
        let taken = std::mem::replace(&mut self.slots[slot], Slot::Down { until });
        self.slots[slot] = match taken {
            Slot::Running(process) => {
                process.pause();
                self.note("paused", process.name());
                // Who stands still with the only lock of a file would stop everything, and not only himself.
                let until = if self.stage.is_locked() { Instant::now() } else { until };
                Slot::Paused { process, until }
            }
            other => other,
        };
    }

    fn stop(&mut self, slot: usize) {
        let until = Instant::now();
        let taken = std::mem::replace(&mut self.slots[slot], Slot::Down { until });
        self.slots[slot] = match taken {
            Slot::Running(process) => {
                self.stage.say(&format!("stop-{}", process.name()));
                Slot::Stopping(process)
            }
            other => other,
        };
    }

    /// Wakes, notices and starts what it is time for.
    fn tend(&mut self) {
        for slot in 0..PROCESSES {
            let now = Instant::now();
            let until = self.soon(500);
            let taken = std::mem::replace(&mut self.slots[slot], Slot::Down { until });
            self.slots[slot] = match taken {
                Slot::Paused { process, until } if until <= now => {
                    self.note("resumed", process.name());
                    process.resume();
                    Slot::Running(process)
                }
                Slot::Stopping(mut process) => match end_of(&mut process) {
                    None => Slot::Stopping(process),
                    Some(End::Good) => Slot::Down { until },
                    Some(End::Bad) => {
                        self.note("broke", process.name());
                        Slot::Down { until }
                    }
                },
                Slot::Down { until } if until <= now => Slot::Running(self.start()),
                Slot::Running(mut process) => {
                    // By itself: nobody has told it to.
                    if process.has_ended() {
                        self.note("broke", process.name());
                        Slot::Down { until }
                    } else {
                        Slot::Running(process)
                    }
                }
                other => other,
            };
        }
    }

    fn running(&self) -> impl Iterator<Item = &Process> {
        self.slots.iter().filter_map(|slot| if let Slot::Running(process) = slot { Some(process) } else { None })
    }

    fn soon(&mut self, millis: impl TryInto<u64>) -> Instant {
        let millis = millis.try_into().unwrap_or(u64::MAX);
        Instant::now() + Duration::from_millis(self.random.u64(..millis))
    }

    fn note(&self, what: &str, node: &str) {
        let line = Line {
            what: what.into(),
            node: node.into(),
            at: now(),
            epoch: 0,
            partition: 0,
            id: "-".into(),
            key: None,
            order: 0,
        };
        (&self.ledger).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// A run that fails, in whatever way, leaves its ledger and its log.
impl<S: Site> Drop for Storm<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stage.keep();
            let kept = ["ledger", "orders"].map(|name| self.stage.path(name).display().to_string()).join(" and ");
            eprintln!("what was delivered, what was committed, and the log are kept: {kept}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_stops_with_an_error_has_a_bad_end() {
        for (script, expected) in [("exit 0", End::Good), ("exit 101", End::Bad), ("kill -ABRT $$", End::Bad)] {
            let child = Command::new("sh").args(["-c", &format!("read word; {script}")]).stdin(Stdio::piped()).spawn();
            let mut child = child.unwrap();
            let mut word = child.stdin.take().unwrap();
            let mut process = Process::new(child, "one");
            assert_eq!(end_of(&mut process), None);
            word.write_all(b"stop\n").unwrap();
            let begun = Instant::now();
            let end = loop {
                if let Some(end) = end_of(&mut process) {
                    break end;
                }
                assert!(begun.elapsed() < REST, "{script}");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(end, expected, "{script}");
        }
    }
}
