//! MQTT 5, by Mosquitto.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pillarbox_core::port::Message;
use pillarbox_servers::Mosquitto as Server;
use rumqttc::v5::{
    AsyncClient, Event, EventLoop, MqttOptions,
    mqttbytes::{
        QoS,
        v5::{Packet, PublishProperties},
    },
};
use tokio::sync::{Semaphore, oneshot};

use super::{Arrivals, Broker, Names, sink};
use crate::{Result, backend::EVENT_TYPE};

/// A private Mosquitto.
#[derive(Debug)]
pub(in crate::relay) struct Mqtt {
    server: Server,
}

impl Mqtt {
    fn client(&self, id: &str, capacity: usize) -> (AsyncClient, EventLoop) {
        let mut options = MqttOptions::new(id, "127.0.0.1", self.server.port());
        options.set_clean_start(true);
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        AsyncClient::new(options, capacity)
    }
}

impl Broker for Mqtt {
    const NAMES: Names =
        Names { rate: "relay_mqtt", memory: "mqtt_memory", latency: "mqtt_latency", start: "mqtt_start" };
    const WINDOWS: &'static [usize] = &[100, 500, 1_000, 2_000];
    const KEEPS: bool = false;
    const SEEN: &'static str = "seen by a subscriber";

    async fn start() -> Result<Self> {
        Ok(Self { server: Server::start_for_speed()? })
    }

    fn place(&self) -> Result<String> {
        let version = self.server.version()?;
        Ok(format!("Mosquitto {version}, one topic, quality of service 1, a subscriber in all rounds"))
    }

    fn sink(&self) -> Vec<String> {
        sink("mqtt", &[("url", self.server.url())])
    }

    /// It keeps nothing for who comes later.
    async fn clear(&self) -> Result<()> {
        Ok(())
    }

    async fn limit(&self, messages: &[Message], window: usize) -> Result<Duration> {
        let (client, mut events) = self.client("limit", window);
        let room = Arc::new(Semaphore::new(window));
        let (count, freed) = (messages.len(), room.clone());
        let driver = tokio::spawn(async move {
            let mut answered = 0;
            while answered < count {
                if let Event::Incoming(Packet::PubAck(_)) = events.poll().await? {
                    answered += 1;
                    freed.add_permits(1);
                }
            }
            Result::Ok(())
        });
        let begun = Instant::now();
        for message in messages {
            room.acquire().await?.forget();
            let publish = client.publish_with_properties(
                &*message.topic,
                QoS::AtLeastOnce,
                false,
                message.payload.clone(),
                properties(message),
            );
            publish.await?;
        }
        driver.await??;
        Ok(begun.elapsed())
    }

    async fn listen(&self) -> Result<Arrivals> {
        let (client, mut events) = self.client("listener", 10);
        client.subscribe(EVENT_TYPE, QoS::AtLeastOnce).await?;
        let (ready, subscribed) = oneshot::channel();
        let arrivals = Arrivals::of(async move |inbox| {
            // The loop ends with the last client.
            let _client = client;
            let mut ready = Some(ready);
            loop {
                match events.poll().await? {
                    Event::Incoming(Packet::Publish(publish)) => inbox.put(&publish.payload),
                    Event::Incoming(Packet::SubAck(_)) => {
                        if let Some(ready) = ready.take() {
                            let _ = ready.send(());
                        }
                    }
                    _ => {}
                }
            }
        });
        subscribed.await.map_err(|_| "Mosquitto takes no subscription")?;
        Ok(arrivals)
    }
}

/// With what the relay's message has.
fn properties(message: &Message) -> PublishProperties {
    PublishProperties {
        user_properties: message.attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
        content_type: Some(message.content_type.to_string()),
        ..PublishProperties::default()
    }
}
