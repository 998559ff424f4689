//! RabbitMQ.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, future::try_join_all};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{
        BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable},
};
use pillarbox_core::port::Message;
use pillarbox_servers::RabbitMq as Server;

use super::{Arrivals, Broker, Names, sink};
use crate::{Result, backend::EVENT_TYPE};

/// Written to the disk by queues that are durable.
const PERSISTENT: u8 = 2;

/// One alone waits for the broker longer than the broker for it; the relay has two.
const CHANNELS: usize = 4;

/// A private RabbitMQ.
#[derive(Debug)]
pub(in crate::relay) struct RabbitMq {
    server: Server,
}

impl RabbitMq {
    async fn connect(&self) -> Result<(Connection, Channel)> {
        let connection = Connection::connect(&self.server.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }
}

impl Broker for RabbitMq {
    const NAMES: Names = Names {
        rate: "relay_rabbitmq",
        memory: "rabbitmq_memory",
        latency: "rabbitmq_latency",
        start: "rabbitmq_start",
    };
    const WINDOWS: &'static [usize] = &[100, 250, 500, 1_000, 2_000];
    const WINDOW: &'static str = "4 channels, messages under way by each:";
    const KEEPS: bool = true;
    const SEEN: &'static str = "seen by a consumer";

    async fn start() -> Result<Self> {
        Ok(Self { server: Server::start()? })
    }

    fn place(&self) -> Result<String> {
        let version = self.server.version()?;
        Ok(format!("RabbitMQ {version} on one core, a durable classic queue, persistent messages, mandatory"))
    }

    fn sink(&self) -> Vec<String> {
        sink("rabbitmq", &[("url", self.server.url())])
    }

    async fn clear(&self) -> Result<()> {
        let (connection, channel) = self.connect().await?;
        channel.queue_delete(EVENT_TYPE.into(), QueueDeleteOptions::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(EVENT_TYPE.into(), durable, FieldTable::default()).await?;
        connection.close(200, "OK".into()).await?;
        Ok(())
    }

    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration> {
        let (connection, first) = self.connect().await?;
        let mut channels = vec![first];
        while channels.len() < CHANNELS {
            channels.push(connection.create_channel().await?);
        }
        for channel in &channels {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
        }
        let begun = Instant::now();
        let parts = messages.chunks(messages.len().div_ceil(CHANNELS));
        try_join_all(channels.iter().zip(parts).map(|(channel, part)| publish(channel, part, window))).await?;
        let took = begun.elapsed();
        connection.close(200, "OK".into()).await?;
        Ok(took)
    }

    async fn listen(&self) -> Result<Arrivals> {
        let (connection, channel) = self.connect().await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut consumer =
            channel.basic_consume(EVENT_TYPE.into(), "bench".into(), options, FieldTable::default()).await?;
        Ok(Arrivals::of(async move |inbox| {
            // It is closed with the last who has it.
            let _connection = connection;
            while let Some(delivery) = consumer.next().await {
                inbox.put(&delivery?.data);
            }
            Ok(())
        }))
    }
}

/// Publishes by one channel, with so many messages under way.
async fn publish(channel: &Channel, messages: &[Message], window: usize) -> Result<()> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut under_way = VecDeque::with_capacity(window);
    for message in messages {
        if under_way.len() == window
            && let Some(first) = under_way.pop_front()
        {
            confirmed(first).await?;
        }
        let publish =
            channel.basic_publish("".into(), EVENT_TYPE.into(), options, &message.payload, properties(message));
        under_way.push_back(publish.await?);
    }
    for rest in under_way {
        confirmed(rest).await?;
    }
    Ok(())
}

async fn confirmed(confirm: PublisherConfirm) -> Result<()> {
    let confirmation = confirm.await?;
    if confirmation.is_ack() && confirmation.take_message().is_none() {
        Ok(())
    } else {
        Err("RabbitMQ has not taken a message".into())
    }
}

/// With the headers that the relay's message has.
fn properties(message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in &message.attributes {
        headers.insert(format!("cloudEvents:{name}").into(), AMQPValue::LongString(value.as_str().into()));
    }
    BasicProperties::default()
        .with_content_type(message.content_type.to_string().into())
        .with_delivery_mode(PERSISTENT)
        .with_message_id(message.id.to_string().into())
        .with_type(EVENT_TYPE.into())
        .with_timestamp(0)
        .with_headers(headers)
}
