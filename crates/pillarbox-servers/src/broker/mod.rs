//! Message brokers: Redis, NATS with JetStream, RabbitMQ and Mosquitto. Each is a private server that keeps what it has
//! confirmed over a restart.

mod rabbitmq;

use std::{net::TcpStream, path::Path, process::Command, time::Duration};

pub use rabbitmq::RabbitMq;

use crate::{
    Certificate, Error,
    folder::Temporary,
    packages,
    process::{self, Guarded, Signal},
};

/// What a server needs to start again in the same place.
#[derive(Debug)]
struct Broker {
    server: Option<Guarded>,
    folder: Temporary,
    port: u16,
}

impl Broker {
    fn new(name: &str) -> Result<Self, Error> {
        Ok(Self { server: None, folder: Temporary::new(name)?, port: process::free_port()? })
    }

    /// Starts it unless it runs.
    fn start(&mut self, command: &Command) -> Result<(), Error> {
        if self.server.is_none() {
            let ready = || TcpStream::connect_timeout(&process::local(self.port), Duration::from_secs(1)).is_ok();
            self.server = Some(Guarded::start(command, self.folder.path(), Signal::Terminate, ready)?);
        }
        Ok(())
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut server) = self.server.take() {
            server.end(signal);
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).map_err(Error::of("write", &path))
    }
}

/// Declares a broker: its program is started by `$command`.
macro_rules! broker {
    ($(#[$doc:meta])* $name:ident, $package:literal, $scheme:literal, $version:expr, $prepare:expr, $command:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Broker);

        impl $name {
            /// Starts one.
            pub fn start() -> Result<Self, Error> {
                packages::ensure(&[$package])?;
                let broker = Broker::new($package)?;
                let prepare: fn(&Broker) -> Result<(), Error> = $prepare;
                prepare(&broker)?;
                let mut broker = Self(broker);
                broker.start_again()?;
                Ok(broker)
            }

            /// Starts it after a stop, on the same port with the same data.
            pub fn start_again(&mut self) -> Result<(), Error> {
                let command: fn(&Path, u16) -> Command = $command;
                let command = command(self.0.folder.path(), self.0.port);
                self.0.start(&command)
            }

            /// Ends it in an orderly way.
            pub fn stop(&mut self) {
                self.0.end(Signal::Terminate);
            }

            /// Ends it as `kill -9` does.
            pub fn kill(&mut self) {
                self.0.end(Signal::Kill);
            }

            /// Where clients find it.
            pub fn url(&self) -> String {
                format!(concat!($scheme, "://127.0.0.1:{}"), self.0.port)
            }

            /// The port on 127.0.0.1.
            pub fn port(&self) -> u16 {
                self.0.port
            }

            /// The version, as the program tells it.
            pub fn version(&self) -> Result<String, Error> {
                let tell: fn() -> Result<String, Error> = $version;
                tell()
            }
        }
    };
}

broker!(
    /// A private Redis whose writes are on the disk before they are answered.
    Redis, "redis-server", "redis",
    || Ok(word_after(&process::output(Command::new("redis-server").arg("--version"), "")?, "v=")),
    |_| Ok(()),
    |folder, port| {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(folder);
        command
    }
);

broker!(
    /// A private NATS server with JetStream.
    Nats, "nats-server", "nats",
    || Ok(word_after(&process::output(Command::new("nats-server").arg("--version"), "")?, ": v")),
    |broker| broker.write("settings", &format!(
        "listen: \"127.0.0.1:{}\"\nmax_payload: 1MB\njetstream {{ store_dir: \"{}\" }}\n",
        broker.port, broker.folder.path().join("data").display())),
    |_, _| {
        let mut command = Command::new("nats-server");
        command.args(["--config", "settings"]);
        command
    }
);

broker!(
    /// A private Mosquitto, without logins, for MQTT 3.1.1 and 5.
    Mosquitto, "mosquitto", "mqtt",
    // The program tells its version with its help, and fails.
    || {
        let shown = Command::new("/usr/sbin/mosquitto").arg("-h").output();
        let shown = shown.map_err(Error::of("run", Path::new("mosquitto")))?;
        Ok(word_after(&String::from_utf8_lossy(&shown.stdout), "version "))
    },
    // Saved at every change, so that a kill costs nothing.
    |broker| mosquitto_settings(broker, "autosave_interval 1\nautosave_on_changes true\nmax_queued_messages 100000"),
    |_, _| {
        let mut command = Command::new("/usr/sbin/mosquitto");
        command.args(["-c", "settings"]);
        command
    }
);

impl Mosquitto {
    /// Starts one that speaks TLS as well: at this port, with this certificate.
    pub fn start_with_tls() -> Result<(Self, u16, Certificate), Error> {
        packages::ensure(&["mosquitto"])?;
        let (broker, port) = (Broker::new("mosquitto")?, process::free_port()?);
        let certificate = Certificate::create(broker.folder.path(), Certificate::LOCAL)?;
        let (file, key) = (certificate.file.display(), certificate.key.display());
        mosquitto_settings(&broker, &format!("listener {port} 127.0.0.1\ncertfile {file}\nkeyfile {key}"))?;
        let mut broker = Self(broker);
        broker.start_again()?;
        Ok((broker, port, certificate))
    }

    /// Starts one that saves when Mosquitto does so by default, which is every half hour, keeps any number of messages
    /// for who is slow, and sends each at once: for measuring. What it has confirmed is lost when it is killed.
    pub fn start_for_speed() -> Result<Self, Error> {
        packages::ensure(&["mosquitto"])?;
        let broker = Broker::new("mosquitto")?;
        mosquitto_settings(&broker, "max_queued_messages 0\nset_tcp_nodelay true")?;
        let mut broker = Self(broker);
        broker.start_again()?;
        Ok(broker)
    }
}

fn mosquitto_settings(broker: &Broker, more: &str) -> Result<(), Error> {
    let (port, folder) = (broker.port, broker.folder.path().display());
    broker.write(
        "settings",
        &format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\n\
             persistence_location {folder}/\nmax_inflight_messages 0\nacl_file acl\n{more}\n"
        ),
    )?;
    // What nobody may write is for tests of a refusal. Patterns: rules for topics belong to users, and a client whose session was
    // there before a restart has none until it is back, so that its messages would be dropped.
    broker.write("acl", "pattern deny refused/#\npattern readwrite #\n")
}

/// The word that follows these letters.
fn word_after(text: &str, letters: &str) -> String {
    let rest = text.split_once(letters).map_or("", |(_, rest)| rest);
    rest.split_whitespace().next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_print() {
        assert_eq!(word_after("Redis server v=7.0.15 sha=0", "v="), "7.0.15");
        assert_eq!(word_after("nats-server: v2.9.10\n", ": v"), "2.9.10");
        assert_eq!(word_after("something else", "version "), "unknown");
    }
}
