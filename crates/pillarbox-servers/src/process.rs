//! Server processes that end with whoever started them, and programs that run to their end.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use crate::{Error, folder};

const PATIENCE: Duration = Duration::from_mins(1);

/// Starts the server, obeys the signals that are named on its input, and ends the server when the input closes:
/// that is when its parent has gone, by whatever death. It has a process group of its own, so that neither
/// Ctrl-C nor a test runner that kills a group reaches it before its work is done.
///
/// KILL also hits the server's children: PostgreSQL's would outlive their parent for a moment, and keep the
/// next start from taking the data folder.
const GUARDIAN: &str = r#"
folder=$1 last=$2; shift 2
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
hit() {
    children=
    if [ "$1" = KILL ]; then children=$(cat "/proc/$server/task/$server/children" 2>/dev/null); fi
    kill -s "$1" "$server" $children 2>/dev/null
}
(
    while read -r signal <&3; do hit "$signal"; done
    : >"$folder/abandoned"
    hit "$last"
    sleep 5
    hit KILL
) &
watcher=$!
wait "$server"
status=$?
kill "$watcher" 2>/dev/null
if [ -e "$folder/abandoned" ]; then rm -rf "$folder"; fi
exit "$status"
"#;

/// A running server.
#[derive(Debug)]
pub(crate) struct Guarded {
    guardian: Child,
    // Its end is the guardian's sign to end the server.
    orders: Option<ChildStdin>,
    last: Signal,
    log: PathBuf,
    log_begin: u64,
}

/// How to end a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Interrupt,
    Quit,
    Terminate,
    Kill,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Quit => "QUIT",
            Self::Terminate => "TERM",
            Self::Kill => "KILL",
        }
    }
}

impl Guarded {
    /// Starts a server whose files lie in the folder, and waits until it is ready. When this is dropped or the
    /// process dies, the server gets the last signal; the dead leave it to the guardian to remove the folder.
    pub(crate) fn start(
        command: &Command,
        folder: &Path,
        last: Signal,
        ready: impl Fn() -> bool,
    ) -> Result<Self, Error> {
        let log = folder.join("log");
        let output = File::options().create(true).append(true).open(&log).map_err(Error::of("open", &log))?;
        let log_begin = output.metadata().map_or(0, |metadata| metadata.len());
        let errors = output.try_clone().map_err(Error::of("open", &log))?;
        let mut guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(folder)
            .arg(last.name())
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(Error::of("start", Path::new("sh")))?;
        let orders = guardian.stdin.take();
        let mut server = Self { guardian, orders, last, log, log_begin };
        let deadline = Instant::now() + PATIENCE;
        while !ready() {
            if server.has_ended() {
                return Err(Error::new(format!("the server ended instead of starting:\n{}", server.log())));
            }
            if Instant::now() > deadline {
                return Err(Error::new(format!("the server is not ready after {PATIENCE:?}:\n{}", server.log())));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Sends the signal and waits for the end, which is forced when it takes too long.
    pub(crate) fn end(&mut self, signal: Signal) {
        self.send(signal);
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() {
            if Instant::now() > deadline {
                self.send(Signal::Kill);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn send(&mut self, signal: Signal) {
        if let Some(orders) = &mut self.orders {
            // A guardian that no longer listens has nothing left to end.
            let _ = writeln!(orders, "{}", signal.name());
        }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.guardian.try_wait(), Ok(None))
    }

    /// What the server said since it was started this time.
    fn log(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let _ = file.seek(SeekFrom::Start(self.log_begin)).and_then(|_| file.read_to_end(&mut text));
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.end(self.last);
    }
}

/// A command that runs as this user, which must exist, if we are root: servers refuse to be root themselves.
pub(crate) fn as_user(user: &str, program: impl AsRef<Path>) -> Command {
    if !is_root() {
        return Command::new(program.as_ref());
    }
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).args(["--init-groups", "--"]);
    command.arg(program.as_ref());
    command
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0))
}

/// Runs a program to its end, and returns what it printed; what it complained of is the error.
pub(crate) fn output(command: &mut Command, input: &str) -> Result<String, Error> {
    let program = PathBuf::from(command.get_program());
    let failed = |source| Error::of("run", &program)(source);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who ends before it has read all says why in its own words.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(format!(
        "{} ended with {}:\n{}\n{}",
        program.display(),
        output.status,
        complaint.trim(),
        text.trim()
    )))
}

/// A port of 127.0.0.1 on which nothing listens. It lies below those that the kernel gives to connections, so
/// that it stays free while its server is stopped.
pub(crate) fn free_port() -> Result<u16, Error> {
    for _ in 0..1_000 {
        let port = 10_000 + u16::try_from(folder::random() % 22_000).unwrap_or(0);
        if TcpListener::bind(local(port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::new("no port is free between 10000 and 32000"))
}

/// The address of a port on this machine.
pub(crate) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
