//! A process of the test.

use std::{
    fmt::{self, Debug},
    process::{Child, ChildStdin, Command},
    time::{Duration, Instant},
};

use super::stage::PATIENCE;

/// A process that ends with its test, whatever becomes of the test.
pub struct Process {
    child: Child,
    // Waiting for a child closes its pipe, and that would end it: the pipe is kept apart.
    _pipe: Option<ChildStdin>,
    name: String,
}

impl Process {
    pub(crate) fn new(mut child: Child, name: &str) -> Self {
        let pipe = child.stdin.take();
        Self { child, _pipe: pipe, name: name.into() }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// kill -STOP: comes back when every thread stands still.
    pub fn pause(&self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.child.id());
        let begun = Instant::now();
        // The state follows the name, which is in brackets.
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(begun.elapsed() < PATIENCE, "{self:?} does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// kill -CONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Waits for its end; `true` if it was a good one.
    pub fn end(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How many bytes of memory it has.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The name it was started with.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("sh").args(["-c", &format!("kill -{signal} {}", self.child.id())]).status();
        assert!(done.unwrap().success(), "kill -{signal}");
    }
}

impl Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
