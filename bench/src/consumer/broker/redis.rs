//! Redis Streams.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use pillarbox_core::port::Message;
use pillarbox_inbox::Guard;
use pillarbox_redis::{Options, RedisSource, Subscription};
use pillarbox_servers::Redis as Server;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo as _, Pipeline, Value,
    aio::MultiplexedConnection,
    streams::{StreamInfoGroupsReply, StreamReadReply},
};

use super::{Broker, names};
use crate::{
    Result,
    backend::EVENT_TYPE,
    consumer::guard::{self, BY, CONSUMER, Marks},
};

/// Readers of the client's own loop, each with a connection: while one is answered the other reads its answer.
const READERS: usize = 2;

/// A private Redis.
#[derive(Debug)]
pub(in crate::consumer) struct Redis {
    server: Server,
}

impl Redis {
    pub(in crate::consumer) fn start() -> Result<Self> {
        Ok(Self { server: Server::start()? })
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let info = self.server.url().into_connection_info()?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(tcp))?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Nobody has a mark.
    async fn without_marks(&self) -> Result<MultiplexedConnection> {
        let mut connection = self.connect().await?;
        redis::cmd("FLUSHALL").query_async::<Value>(&mut connection).await?;
        no_rewrite(&mut connection).await?;
        Ok(connection)
    }
}

/// So that the log of the rounds before is not rewritten in the middle of this one.
async fn no_rewrite(connection: &mut MultiplexedConnection) -> Result<()> {
    redis::cmd("CONFIG").arg("SET").arg("auto-aof-rewrite-percentage").arg(0).query_async::<Value>(connection).await?;
    Ok(())
}

impl Broker for Redis {
    const NAME: &'static str = names::REDIS;
    type Source = RedisSource;
    const WINDOWS: &'static [usize] = &[200, 500, 1_000, 5_000];

    fn place(&self, window: usize) -> Result<String> {
        Ok(format!(
            "Redis {}, one stream, appendfsync always; the limit: {READERS} readers, each asking for the next {window} entries \
             in one pipeline with one XACK of those before",
            self.server.version()?
        ))
    }

    async fn fill(&self, messages: &[Message]) -> Result<()> {
        let mut connection = self.connect().await?;
        no_rewrite(&mut connection).await?;
        for chunk in messages.chunks(500) {
            let mut pipeline = Pipeline::with_capacity(chunk.len());
            for message in chunk {
                pipeline.add_command(append(message));
            }
            pipeline.query_async::<Vec<Value>>(&mut connection).await?;
        }
        Ok(())
    }

    async fn group(&self, name: &str) -> Result<()> {
        let mut connection = self.connect().await?;
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg(EVENT_TYPE).arg(name).arg("0").query_async::<Value>(&mut connection).await?;
        Ok(())
    }

    fn source(&self, group: &str) -> Result<RedisSource> {
        Ok(Options::new(self.server.url()).subscribe(Subscription::new([EVENT_TYPE], group))?)
    }

    async fn limit(&self, group: &str, messages: usize, window: usize) -> Result<Duration> {
        let mut connections = Vec::new();
        for _ in 0..READERS {
            connections.push(self.connect().await?);
        }
        let begun = Instant::now();
        let read = connections.into_iter().enumerate().map(|(number, connection)| {
            let group = group.to_owned();
            tokio::spawn(async move { read_all(connection, &group, &format!("reader-{number}"), window).await })
        });
        let mut count = 0;
        for read in try_join_all(read).await? {
            count += read?;
        }
        let took = begun.elapsed();
        if count == messages { Ok(took) } else { Err(format!("{count} of {messages} entries were read").into()) }
    }

    async fn left(&self, group: &str) -> Result<u64> {
        let mut connection = self.connect().await?;
        let info: StreamInfoGroupsReply =
            redis::cmd("XINFO").arg("GROUPS").arg(EVENT_TYPE).query_async(&mut connection).await?;
        let found = info.groups.into_iter().find(|found| found.name == group).ok_or("the group is gone")?;
        redis::cmd("XGROUP").arg("DESTROY").arg(EVENT_TYPE).arg(group).query_async::<Value>(&mut connection).await?;
        Ok(found.lag.unwrap_or(usize::MAX) as u64 + found.pending as u64)
    }
}

/// Reads and acknowledges until nothing is left; how many it were.
async fn read_all(
    mut connection: MultiplexedConnection,
    group: &str,
    reader: &str,
    window: usize,
) -> std::result::Result<usize, redis::RedisError> {
    let (mut count, mut before) = (0, Vec::new());
    loop {
        let mut pipeline = Pipeline::with_capacity(2);
        if !before.is_empty() {
            pipeline.cmd("XACK").arg(EVENT_TYPE).arg(group).arg(&before).ignore();
        }
        pipeline.cmd("XREADGROUP").arg("GROUP").arg(group).arg(reader).arg("COUNT").arg(window);
        pipeline.arg("STREAMS").arg(EVENT_TYPE).arg(">");
        let (read,): (Option<StreamReadReply>,) = pipeline.query_async(&mut connection).await?;
        before = read.into_iter().flat_map(|read| read.keys).flat_map(|key| key.ids).map(|entry| entry.id).collect();
        if before.is_empty() {
            return Ok(count);
        }
        count += before.len();
    }
}

/// With the fields that the relay's message has.
fn append(message: &Message) -> Cmd {
    let mut command = redis::cmd("XADD");
    command.arg(&*message.topic).arg("*").arg("id").arg(message.id.to_string());
    command.arg("key").arg(message.key.as_ref().map_or("", |key| key.as_str()));
    command.arg("content-type").arg(&*message.content_type);
    for (name, value) in &message.attributes {
        command.arg(format!("ce_{name}")).arg(value);
    }
    command.arg("payload").arg(&message.payload[..]);
    command
}

impl guard::Place for Redis {
    const NAMES: [&'static str; 2] = guard::names::REDIS;
    type Bare = Bare;
    type Kept = ();

    async fn bare(&self, _callers: usize) -> Result<Bare> {
        Ok(Bare(self.without_marks().await?))
    }

    async fn guard(&self) -> Result<(Guard, ())> {
        self.without_marks().await?;
        Ok((Guard::new(Options::new(self.server.url()).guard("bench:")?), ()))
    }

    fn note(&self) -> String {
        "SET with NX and PX, all on one multiplexed connection; appendfsync always".into()
    }
}

/// The statement by its client.
pub(in crate::consumer) struct Bare(MultiplexedConnection);

impl Marks for Bare {
    async fn mark(&self, _caller: usize, message: &str) -> Result<bool> {
        let mut set = redis::cmd("SET");
        set.arg(format!("bench:guard:7:{CONSUMER}:{message}")).arg(BY).arg("NX").arg("PX").arg(3_600_000);
        Ok(set.query_async::<Value>(&mut self.0.clone()).await? == Value::Okay)
    }
}
