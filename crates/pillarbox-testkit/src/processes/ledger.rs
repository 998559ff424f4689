//! The ledger: a line for each thing that a process did, appended by all of them to one file.

use std::{
    collections::{HashMap, HashSet},
    fs::{File, OpenOptions},
    io::Write as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use pillarbox_core::domain::{Delivery, Epoch, Partition};

use crate::proof::{Line, Order};

/// Microseconds since 1970.
pub fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// The pen of one process.
#[derive(Debug)]
pub struct Pen {
    file: File,
    node: String,
}

impl Pen {
    pub(crate) fn new(path: &Path, node: &str) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        Self { file, node: node.into() }
    }

    /// A line about a delivery. Lines are short and go out in one write, so they never mix.
    pub fn delivery(&self, what: &str, delivery: &Delivery, order: i64) {
        let event = delivery.event();
        let (epoch, partition) = (delivery.fencing_token().0, delivery.record().partition.0);
        let key = event.key().map_or("-", |key| key.as_str());
        self.line(&format!("{what} {} {} {epoch} {partition} {} {key} {order}\n", self.node, now(), event.id()));
    }

    /// A line about something else.
    pub fn word(&self, what: &str, id: &str, order: i64) {
        self.line(&format!("{what} {} {} 0 0 {id} - {order}\n", self.node, now()));
    }

    /// A line about a partition.
    pub(crate) fn partition(&self, what: &str, partition: Partition, epoch: Epoch, order: i64) {
        self.line(&format!("{what} {} {} {} {} - - {order}\n", self.node, now(), epoch.0, partition.0));
    }

    /// A line about another process.
    pub(crate) fn of_another(&self, what: &str, node: &str) {
        self.line(&format!("{what} {node} {} 0 0 - - 0\n", now()));
    }

    /// Waits for the disk.
    pub(crate) fn to_disk(&self) {
        self.file.sync_data().unwrap();
    }

    fn line(&self, text: &str) {
        // What was given to the operating system outlives the process, by whatever death.
        (&self.file).write_all(text.as_bytes()).unwrap();
    }
}

/// What the processes have written so far.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Vec<Line>);

impl Ledger {
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line may be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |line| Line::parse(line).unwrap_or_else(|| panic!("a torn line: {line:?}"));
        Self(whole.lines().map(parse).collect())
    }

    pub(crate) fn into_lines(self) -> Vec<Line> {
        self.0
    }

    /// The lines with this word.
    pub fn of<'a>(&'a self, what: &'a str) -> impl Iterator<Item = &'a Line> {
        self.0.iter().filter(move |line| line.what == what)
    }

    /// How often a process wrote this word.
    pub fn count(&self, what: &str, node: &str) -> usize {
        self.of(what).filter(|line| line.node == node).count()
    }

    /// The events whose handler came to its end, and how often.
    pub fn delivered(&self) -> HashMap<&str, usize> {
        let mut delivered = HashMap::new();
        for line in self.of("end") {
            *delivered.entry(line.id.as_str()).or_default() += 1;
        }
        delivered
    }

    /// Delivered is what was committed, and nothing else.
    pub fn assert_delivered_is(&self, committed: &[Order]) {
        let delivered = self.delivered();
        for order in committed {
            assert!(delivered.contains_key(order.id.as_str()), "lost: {order:?}");
        }
        let committed: HashSet<_> = committed.iter().map(|order| order.id.as_str()).collect();
        for line in self.of("begin") {
            assert!(committed.contains(line.id.as_str()), "never committed: {line:?}");
        }
    }

    /// What a writer was told to be committed is in the application's table.
    pub fn assert_commits_are_in(&self, committed: &[Order]) {
        let ids: HashSet<_> = committed.iter().map(|order| order.id.as_str()).collect();
        for line in self.of("committed") {
            assert!(ids.contains(line.id.as_str()), "{line:?} is not in the table");
        }
    }

    /// How many deliveries were repeats.
    pub fn repeats(&self) -> usize {
        self.of("end").count() - self.delivered().len()
    }

    /// No handler began or ended twice for one event.
    pub fn assert_each_once(&self) {
        for what in ["begin", "end"] {
            let mut seen = HashSet::new();
            for line in self.of(what) {
                assert!(seen.insert(&line.id), "delivered twice: {line:?}");
            }
        }
    }

    /// An event of a key begins only when all before it have come to an end: what comes later than that is
    /// the repeat of something old.
    pub fn assert_in_order_per_key(&self, committed: &[Order]) {
        let mut ended: HashSet<&str> = HashSet::new();
        let mut of_key: HashMap<&str, Vec<&Order>> = HashMap::new();
        for order in committed {
            if let Some(key) = &order.key {
                of_key.entry(key).or_default().push(order);
            }
        }
        for line in &self.0 {
            match (line.what.as_str(), &line.key) {
                ("begin", Some(key)) => {
                    let earlier = of_key[key.as_str()].iter().take_while(|order| order.number < line.order);
                    for order in earlier {
                        assert!(ended.contains(order.id.as_str()), "{line:?} began before {order:?} had ended");
                    }
                }
                ("end", _) => {
                    ended.insert(&line.id);
                }
                _ => {}
            }
        }
    }
}
