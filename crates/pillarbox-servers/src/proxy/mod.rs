//! A proxy between a client and its server that breaks connections when a test says so.

mod commit;

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use commit::{Answers, Protocol, Requests};

use crate::{Error, database, process};

/// Passes bytes between clients and one server, until it is told otherwise.
///
/// It looks into connections without TLS only: the faults of a commit need `sslmode=disable`, or its like.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    hub: Arc<Hub>,
    listener: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Hub {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    refusing: bool,
    stalled: bool,
    muted: bool,
    fault: Option<Fault>,
    lost: usize,
    links: Vec<Arc<Link>>,
}

/// What happens to the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Request,
    Answer,
}

/// Both ends of a connection.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    // What the server says next does not reach the client.
    is_mute: AtomicBool,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1, for a server at this address.
    pub fn to(server: impl Into<SocketAddr>) -> Result<Self, Error> {
        let hub = Hub { server: server.into(), state: Mutex::default(), changed: Condvar::new() };
        let proxy = Self { port: process::free_port()?, hub: Arc::new(hub), listener: Mutex::default() };
        proxy.accept()?;
        Ok(proxy)
    }

    /// Listens for the server of this URL.
    pub fn to_url(url: &str) -> Result<Self, Error> {
        Self::to(process::local(database::port(url)))
    }

    /// Ends all connections, at once. New ones are accepted, unless they are refused.
    pub fn cut(&self) {
        for link in self.hub.state().links.drain(..) {
            link.cut();
        }
        self.hub.changed.notify_all();
    }

    /// Refuses new connections, as a machine does on which no server runs. Those there are live on.
    pub fn refuse(&self) {
        self.hub.state().refusing = true;
        if let Some(listener) = self.listener().take() {
            // The thread waits for a connection: this is its last.
            let _ = TcpStream::connect(self.addr());
            let _ = listener.join();
        }
    }

    /// Accepts connections again.
    pub fn accept(&self) -> Result<(), Error> {
        let mut thread = self.listener();
        if thread.is_none() {
            let failed = |error: io::Error| Error::new(format!("the proxy can't listen on {}: {error}", self.addr()));
            let listener = TcpListener::bind(self.addr()).map_err(failed)?;
            self.hub.state().refusing = false;
            let hub = Arc::clone(&self.hub);
            *thread = Some(thread::spawn(move || hub.listen(&listener)));
        }
        Ok(())
    }

    /// Holds back all bytes in both directions. Connections stay open.
    pub fn stall(&self) {
        self.hub.state().stalled = true;
    }

    /// What clients say reaches the server, and nothing that it answers reaches them. What is lost stays lost: cut the
    /// connections afterwards.
    pub fn lose_answers(&self) {
        self.hub.state().muted = true;
    }

    /// Lets the bytes go on that were held back, and all others.
    pub fn resume(&self) {
        let mut state = self.hub.state();
        (state.stalled, state.muted) = (false, false);
        drop(state);
        self.hub.changed.notify_all();
    }

    /// The next commit reaches the server, which carries it out and answers. The answer is lost, and the connection
    /// is cut: the client can't know what happened.
    pub fn lose_next_commit_answer(&self) {
        self.hub.state().fault = Some(Fault::Answer);
    }

    /// The next commit does not reach the server, and the connection is cut: to the client it looks the same.
    pub fn lose_next_commit(&self) {
        self.hub.state().fault = Some(Fault::Request);
    }

    /// How many commits or answers to them were lost so far.
    pub fn lost_commits(&self) -> usize {
        self.hub.state().lost
    }

    /// Waits until this many were lost, and tells whether they were.
    pub fn wait_for_lost_commits(&self, count: usize, timeout: Duration) -> bool {
        let waited = self.hub.changed.wait_timeout_while(self.hub.state(), timeout, |state| state.lost < count);
        waited.unwrap_or_else(PoisonError::into_inner).0.lost >= count
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.hub.state().links.len()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        process::local(self.port)
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server, changed so that it leads through the proxy.
    pub fn url(&self, server: &str) -> String {
        server.replacen(&format!(":{}", database::port(server)), &format!(":{}", self.port), 1)
    }

    fn listener(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse();
        self.cut();
    }
}

impl Hub {
    fn listen(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            if self.state().refusing {
                return;
            }
            let Ok(server) = TcpStream::connect_timeout(&self.server, Duration::from_secs(5)) else {
                continue;
            };
            // Answers of a few bytes must not wait for more of them.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let link = Arc::new(Link { client, server, is_mute: AtomicBool::new(false) });
            self.state().links.push(Arc::clone(&link));
            for pump in [Self::requests, Self::answers] {
                let (hub, link) = (Arc::clone(self), Arc::clone(&link));
                thread::spawn(move || {
                    // A broken connection is what this is about: the other end learns of it, and that is all.
                    let _ = pump(&hub, &link);
                    link.cut();
                    hub.state().links.retain(|other| !Arc::ptr_eq(other, &link));
                    hub.changed.notify_all();
                });
            }
        }
    }

    /// From the client to the server.
    fn requests(&self, link: &Arc<Link>) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        let mut requests = Requests::default();
        while let Some(bytes) = self.receive(&link.client, link, &mut buffer)? {
            let commit = requests.look(bytes);
            if commit.is_some() && self.take(Fault::Request) {
                self.count();
                return Ok(());
            }
            // MySQL's answer does not tell what it answers. It is the next thing that the server says.
            if commit == Some(Protocol::MySql) && self.take(Fault::Answer) {
                link.is_mute.store(true, Ordering::SeqCst);
            }
            (&link.server).write_all(bytes)?;
        }
        Ok(())
    }

    /// From the server to the client.
    fn answers(&self, link: &Arc<Link>) -> io::Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        let mut answers = Answers::default();
        while let Some(bytes) = self.receive(&link.server, link, &mut buffer)? {
            if link.is_mute.load(Ordering::SeqCst) {
                self.count();
                return Ok(());
            }
            if self.state().muted {
                continue;
            }
            let is_armed = self.state().fault == Some(Fault::Answer);
            let (pass, is_commit) = answers.look(bytes, is_armed);
            (&link.client).write_all(&pass)?;
            if is_commit {
                if self.take(Fault::Answer) {
                    self.count();
                    return Ok(());
                }
                (&link.client).write_all(&answers.release())?;
            }
        }
        Ok(())
    }

    /// What came from this end, once it may go on; nothing at the end of the connection.
    fn receive<'a>(
        &self,
        mut from: &TcpStream,
        link: &Arc<Link>,
        buffer: &'a mut [u8],
    ) -> io::Result<Option<&'a [u8]>> {
        let count = from.read(buffer)?;
        let stalled = |state: &mut State| state.stalled && state.links.iter().any(|open| Arc::ptr_eq(open, link));
        drop(self.changed.wait_while(self.state(), stalled));
        Ok((count > 0).then_some(&buffer[..count]))
    }

    /// Whether this fault was ordered. It strikes once.
    fn take(&self, fault: Fault) -> bool {
        self.state().fault.take_if(|ordered| *ordered == fault).is_some()
    }

    fn count(&self) {
        self.state().lost += 1;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    fn cut(&self) {
        // An end that is closed already needs no closing.
        let _ = (self.client.shutdown(Shutdown::Both), self.server.shutdown(Shutdown::Both));
    }
}
