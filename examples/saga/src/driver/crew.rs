//! The three services as processes: started, killed, started again.

use std::{env, fs::OpenOptions, path::PathBuf, process::Stdio, time::Duration};

use tokio::process::{Child, Command};

use crate::{Failure, plan::SERVICES};

/// Where the services work.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    pub(super) folder: PathBuf,
    pub(super) nats: String,
    pub(super) stream: String,
    pub(super) timeout: Duration,
    pub(super) without_inbox: bool,
}

pub(super) struct Crew {
    ground: Ground,
    /// As [`SERVICES`].
    processes: Vec<Child>,
    kills: [u32; SERVICES.len()],
}

impl Crew {
    pub(super) fn start(ground: Ground) -> Result<Self, Failure> {
        let processes = SERVICES.iter().map(|service| ground.spawn(service)).collect::<Result<_, _>>()?;
        Ok(Self { ground, processes, kills: [0; SERVICES.len()] })
    }

    /// Ends one of them with SIGKILL, and starts it again.
    pub(super) async fn kill(&mut self, service: usize) -> Result<(), Failure> {
        self.processes[service].kill().await?;
        self.kills[service] += 1;
        self.processes[service] = self.ground.spawn(SERVICES[service])?;
        Ok(())
    }

    /// Fails if one has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for (service, process) in SERVICES.iter().zip(&mut self.processes) {
            if let Some(status) = process.try_wait()? {
                let log = self.ground.log(service);
                return Err(format!("the {service} service has ended with {status}: see {}", log.display()).into());
            }
        }
        Ok(())
    }

    /// Lets them end in an orderly way.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        self.check()?;
        for process in &mut self.processes {
            drop(process.stdin.take());
        }
        for (service, mut process) in SERVICES.iter().zip(self.processes) {
            let ended = tokio::time::timeout(Duration::from_mins(1), process.wait()).await;
            let status = ended.map_err(|_| format!("the {service} service does not end"))??;
            if !status.success() {
                let log = self.ground.log(service);
                return Err(format!("the {service} service ended with {status}: see {}", log.display()).into());
            }
        }
        Ok(())
    }

    /// How often each was killed, as [`SERVICES`].
    pub(super) fn kills(&self) -> [u32; SERVICES.len()] {
        self.kills
    }
}

impl Ground {
    fn spawn(&self, service: &str) -> Result<Child, Failure> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(service))?;
        let mut command = Command::new(env::current_exe()?);
        command.arg(service).arg("--db").arg(self.folder.join(format!("{service}.db")));
        command.args(["--nats", &self.nats, "--stream", &self.stream]);
        command.arg("--timeout").arg(format!("{}ms", self.timeout.as_millis()));
        if self.without_inbox {
            command.arg("--without-inbox");
        }
        // The standard input is what they end with, also when this process is killed.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);
        Ok(command.spawn()?)
    }

    fn log(&self, service: &str) -> PathBuf {
        self.folder.join(format!("{service}.log"))
    }
}
