//! The `pillarbox` program, as it is built for users, in a process of its own: so memory and start are the relay's alone.

use std::{
    error::Error,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::NamedTempFile;

use crate::{Result, rounds::float};

/// What every run of the relay is told besides its sink and its database.
pub(super) const SETTINGS: [&str; 3] = ["outbox.on_success=delete", "http.listen=127.0.0.1:0", "log.filter=warn"];
/// A relay that is told to stop does so within this time.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// The program.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    features: &'static str,
}

impl Program {
    /// Builds it, in release mode, beside this one.
    pub(super) async fn build(with_kafka: bool) -> Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let features: &[&str] = if with_kafka { &["--features", "kafka"] } else { &[] };
        let built = tokio::process::Command::new(cargo)
            .args(["build", "--release", "--locked", "--quiet", "--package", "pillarbox-cli"])
            .args(features)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdout(Stdio::null())
            .status()
            .await?;
        if !built.success() {
            return Err("the relay does not build".into());
        }
        let path = std::env::current_exe()?.with_file_name("pillarbox");
        Ok(Self { path, features: if with_kafka { "with Kafka" } else { "without Kafka" } })
    }

    pub(super) fn mebibytes(&self) -> Result<f64> {
        Ok(float(fs::metadata(&self.path)?.len()) / 1024.0 / 1024.0)
    }

    /// Of its size.
    pub(super) fn note(&self) -> String {
        let stripped = self.stripped().map_or_else(|_| "not known".into(), |size| format!("{size:.1} MiB"));
        format!(
            "the program {} as `cargo build --release` makes it, with line numbers; stripped: {stripped}",
            self.features
        )
    }

    /// How large it is without symbols and line numbers.
    fn stripped(&self) -> Result<f64> {
        let file = NamedTempFile::new()?;
        let done = Command::new("strip").arg("-o").arg(file.path()).arg(&self.path).output()?;
        if !done.status.success() {
            return Err("it can't be stripped".into());
        }
        Ok(float(fs::metadata(file.path())?.len()) / 1024.0 / 1024.0)
    }

    /// Starts a relay from this database, with these settings of its sink.
    pub(super) fn start(&self, database: &str, sink: &[String], output: Stdio) -> Result<Running> {
        let log = NamedTempFile::new()?;
        let mut command = Command::new(&self.path);
        command.args(["relay", "--db", database]);
        command.args(SETTINGS.into_iter().chain(sink.iter().map(String::as_str)).flat_map(|set| ["--set", set]));
        let inherited = std::env::vars_os().map(|(name, _)| name);
        for name in inherited.filter(|name| name.to_string_lossy().starts_with("PILLARBOX") || *name == "RUST_LOG") {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(output).stderr(File::create(log.path())?);
        Ok(Running { child: command.spawn()?, log })
    }
}

/// A relay at work; killed when it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    log: NamedTempFile,
}

impl Running {
    /// An error when it has ended by itself.
    pub(super) fn must_live(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(format!("the relay has ended: {status}").into()),
            None => Ok(()),
        }
    }

    /// The same error, with what the relay has said.
    pub(super) fn explain(&self, error: &(dyn Error + Send + Sync)) -> Box<dyn Error + Send + Sync> {
        let said = fs::read_to_string(self.log.path()).unwrap_or_default();
        let last = said.lines().rev().take(5).collect::<Vec<_>>();
        format!("{error}; the relay said: {}", last.into_iter().rev().collect::<Vec<_>>().join(" | ")).into()
    }

    /// The most MiB that it ever had.
    pub(super) fn most_resident(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        let kibibytes: u64 = number.ok_or("the resident memory is not in /proc")?.parse()?;
        Ok(float(kibibytes) / 1024.0)
    }

    /// Tells it to stop, as an operator does, and sees to it that it ends well.
    pub(super) async fn stop(mut self) -> Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let end = tokio::time::Instant::now() + STOPS_WITHIN;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if tokio::time::Instant::now() > end {
                return Err(self.explain(&*Box::<dyn Error + Send + Sync>::from("the relay does not stop")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        if !status.success() {
            return Err(self.explain(&*Box::<dyn Error + Send + Sync>::from(format!("the relay has ended: {status}"))));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
