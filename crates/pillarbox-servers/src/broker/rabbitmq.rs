//! RabbitMQ, with the port mapper that Erlang's nodes ask for each other: a private one, so that nothing is left running.

use std::{fs, net::TcpStream, process::Command, time::Duration};

use crate::{
    Certificate, Error,
    folder::Temporary,
    packages,
    process::{self, Guarded, Signal},
};

/// What it prints when clients may come.
const READY: &str = "Server startup complete";

/// A private RabbitMQ for the user `guest` with the password `guest`.
#[derive(Debug)]
pub struct RabbitMq {
    server: Option<Guarded>,
    // After the server: it is asked while that ends.
    _mapper: Guarded,
    folder: Temporary,
    // The mapper's log is not the server's.
    _mapper_folder: Temporary,
    port: u16,
    mapper_port: u16,
    node_port: u16,
}

impl RabbitMq {
    /// Starts one, which takes some seconds.
    pub fn start() -> Result<Self, Error> {
        Self::start_in(Temporary::new("rabbitmq")?, "")
    }

    /// One that speaks TLS as well: at this port, with this certificate.
    pub fn start_with_tls() -> Result<(Self, u16, Certificate), Error> {
        let (folder, port) = (Temporary::new("rabbitmq")?, process::free_port()?);
        let certificate = Certificate::create(folder.path(), Certificate::LOCAL)?;
        let Certificate { root, file, key } = &certificate;
        let settings = format!(
            "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\nssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n",
            root.display(),
            file.display(),
            key.display()
        );
        Ok((Self::start_in(folder, &settings)?, port, certificate))
    }

    fn start_in(folder: Temporary, more: &str) -> Result<Self, Error> {
        packages::ensure(&["rabbitmq-server"])?;
        let mapper_folder = Temporary::new("epmd")?;
        let (port, mapper_port, node_port) = (process::free_port()?, process::free_port()?, process::free_port()?);
        let mut mapper = Command::new("epmd");
        mapper.args(["-address", "127.0.0.1", "-port"]).arg(mapper_port.to_string());
        let ready = || TcpStream::connect_timeout(&process::local(mapper_port), Duration::from_secs(1)).is_ok();
        let mapper = Guarded::start(&mapper, mapper_folder.path(), Signal::Kill, ready)?;
        let settings = folder.path().join("rabbitmq.conf");
        let text = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users = none\ndisk_free_limit.absolute = 50MB\n{more}"
        );
        fs::write(&settings, text).map_err(Error::of("write", &settings))?;
        let mut broker =
            Self { server: None, _mapper: mapper, folder, _mapper_folder: mapper_folder, port, mapper_port, node_port };
        broker.start_again()?;
        Ok(broker)
    }

    /// Starts it after a stop, on the same port with the same data.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.server.is_some() {
            return Ok(());
        }
        let folder = self.folder.path();
        let log = folder.join("log");
        let said = |log: &std::path::Path| fs::read_to_string(log).unwrap_or_default().matches(READY).count();
        let before = said(&log);
        let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .env("HOME", folder)
            .env("RABBITMQ_NODENAME", "pillarbox@localhost")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.node_port.to_string())
            .env("ERL_EPMD_PORT", self.mapper_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", folder.join("data"))
            .env("RABBITMQ_LOG_BASE", folder.join("logs"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            // One thread, and Erlang itself in the place of the script, so that signals reach it.
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1")
            .env("RUNNING_UNDER_SYSTEMD", "1");
        self.server = Some(Guarded::start(&command, folder, Signal::Kill, || said(&log) > before)?);
        Ok(())
    }

    /// Ends it in an orderly way.
    pub fn stop(&mut self) {
        self.end(Signal::Terminate);
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        self.end(Signal::Kill);
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The version of the installed package.
    pub fn version(&self) -> Result<String, Error> {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat", "${Version}", "rabbitmq-server"]);
        process::output(&mut query, "")
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut server) = self.server.take() {
            server.end(signal);
        }
    }
}
