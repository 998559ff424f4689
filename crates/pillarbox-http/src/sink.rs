//! The sink.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, stream};
use pillarbox_core::port::{Abilities, BoxFuture, Confirms, Message, Pace, Sent, Sink, SinkError, SinkErrorKind};
use reqwest::{Client, Method, Request, Response, StatusCode, Url};
use tokio::time::timeout;

use crate::{Secret, connection::Connection, error, message, target::Targets};

/// So much of a body becomes words, if it comes within so long.
const WORDS: (usize, Duration) = (500, Duration::from_secs(1));
/// So much of a body is read, and so long, to use the connection again. What comes later costs a new connection.
const REST: (usize, Duration) = (64 * 1024, Duration::from_millis(100));

/// Web hooks: a POST a message. Made by [`Options::open`](crate::Options::open).
pub struct HttpSink {
    connection: Connection,
    url: Url,
    targets: Targets,
    secrets: Vec<Secret>,
    answer_within: Duration,
    at_once: usize,
    largest: Option<usize>,
}

impl HttpSink {
    pub(crate) fn new(
        connection: Connection,
        url: Url,
        secrets: Vec<Secret>,
        answer_within: Duration,
        at_once: usize,
        largest: Option<usize>,
    ) -> Self {
        let targets = Targets::below(url.clone());
        Self { connection, url, targets, secrets, answer_within, at_once, largest }
    }

    async fn send_one(&self, message: &Message, nobody: &OnceLock<SinkError>) -> Sent {
        if let Some(largest) = self.largest.filter(|largest| message.payload.len() > *largest) {
            let bytes = message.payload.len();
            return Err(SinkError::unfit(format_args!("{bytes} bytes are too many: the receiver takes {largest}")));
        }
        if let Some(error) = nobody.get() {
            return Err(error.clone());
        }
        let target = self.targets.of(&message.topic)?;
        let request = message::request(message, target, self.connection.headers(), &self.secrets, SystemTime::now())?;
        let sent = self.ask(request).await.and_then(|answer| answer.sent);
        if let Err(error) = &sent
            && error.kind() == SinkErrorKind::Unavailable
        {
            let _ = nobody.set(error.clone());
        }
        sent
    }

    /// Sends a request, and waits for the answer.
    async fn ask(&self, request: Request) -> Result<Answer, SinkError> {
        let client = self.connection.client()?;
        let answered = timeout(self.answer_within, self.answer(&client, request)).await;
        answered.unwrap_or_else(|_| {
            // The answer may come yet: it will find nobody. Nor is a connection that swallows requests used again.
            self.connection.lost(&client);
            let (receiver, within) = (message::origin(&self.url), self.answer_within);
            Err(SinkError::unavailable(format_args!("{receiver} does not answer within {within:?}")))
        })
    }

    async fn answer(&self, client: &Arc<Client>, request: Request) -> Result<Answer, SinkError> {
        let response = client.execute(request).await.map_err(|error| {
            self.connection.lost(client);
            error::no_answer(&message::origin(&self.url), error)
        })?;
        let status = response.status();
        // The status has said what counts: whatever becomes of the body, it holds.
        if status.is_success() {
            if response.content_length() != Some(0) {
                beginning(response, REST).await;
            }
            return Ok(Answer { status, sent: Ok(()) });
        }
        let headers = response.headers().clone();
        let words = error::printable(&String::from_utf8_lossy(&beginning(response, WORDS).await));
        Ok(Answer { status, sent: error::verdict(status, &headers, &words, SystemTime::now()) })
    }
}

/// What a receiver has said, and what that means for a message.
struct Answer {
    status: StatusCode,
    sent: Sent,
}

/// So many bytes of the body at most, or what came of them in time.
async fn beginning(mut response: Response, (bytes, span): (usize, Duration)) -> Vec<u8> {
    let mut read = Vec::new();
    let reading = async {
        while let Ok(Some(chunk)) = response.chunk().await
            && read.len() < bytes
        {
            read.extend_from_slice(&chunk[..chunk.len().min(bytes - read.len())]);
        }
    };
    let _ = timeout(span, reading).await;
    read
}

impl Sink for HttpSink {
    fn abilities(&self) -> Abilities {
        Abilities { confirms: Confirms::Received, largest: self.largest, keeps_order: true, dedupes: false }
    }

    /// A request at a time: in a batch, the quick ones would wait for the slowest.
    fn pace(&self) -> Pace {
        Pace { batch: 1, batches: self.at_once }
    }

    fn send<'a>(&'a self, batch: &'a [Message]) -> BoxFuture<'a, Vec<Sent>> {
        Box::pin(async move {
            let nobody = OnceLock::new();
            if let [message] = batch {
                return vec![self.send_one(message, &nobody).await];
            }
            let sending: Vec<_> = batch
                .iter()
                .enumerate()
                .map(|(n, message)| {
                    let sending = self.send_one(message, &nobody);
                    async move { (n, sending.await) }
                })
                .collect();
            // In the order of their answers, so that a slow one keeps no others from being sent.
            let mut answers: Vec<_> = stream::iter(sending).buffer_unordered(self.at_once).collect().await;
            answers.sort_unstable_by_key(|(n, _)| *n);
            answers.into_iter().map(|(_, sent)| sent).collect()
        })
    }

    /// Asks for the head of the URL. Any answer means that somebody is there, since a web hook need not know that question;
    /// but for those that say that nobody is.
    fn check(&self) -> BoxFuture<'_, Sent> {
        Box::pin(async move {
            match self.ask(Request::new(Method::HEAD, self.url.clone())).await {
                Err(error) => Err(error),
                Ok(Answer { status, sent }) if matches!(status.as_u16(), 502..=504) => sent,
                Ok(_) => Ok(()),
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.connection.close();
        Box::pin(async {})
    }
}

impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink").field("url", &message::place(&self.url)).finish_non_exhaustive()
    }
}
