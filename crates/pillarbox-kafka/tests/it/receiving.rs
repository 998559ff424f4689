//! The Kafka source passes the exam.

use std::time::Duration;

use pillarbox_kafka::{KafkaSource, Options, Subscription};
use pillarbox_testkit::{
    sinks::{ANSWER_WITHIN, Place as _},
    sources::{Place, WAIT},
};
use rdkafka::{
    ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer as _},
};

use crate::conformance::Kafka;

impl Place for Kafka {
    type Source = KafkaSource;

    async fn private() -> Self {
        Self::fresh().await
    }

    fn restart(&mut self) {
        self.cluster.with(|mock| mock.broker_down(1).unwrap());
        self.proxy().cut();
        self.cluster.with(|mock| mock.broker_up(1).unwrap());
    }

    fn source(&self, group: &str, _again_after: Duration) -> KafkaSource {
        let subscription = Subscription::new([&*self.topic()], group).session(Duration::from_secs(6)).wait(WAIT);
        let options = Options::new(self.proxy().addr().to_string()).answer_within(ANSWER_WITHIN);
        options.subscribe(subscription).unwrap()
    }

    fn keeps_messages() -> bool {
        true
    }

    async fn send_plain(&self, payload: &[u8]) {
        let producer: BaseProducer =
            ClientConfig::new().set("bootstrap.servers", &self.cluster.brokers).create().unwrap();
        producer.send(BaseRecord::<(), [u8]>::to(&self.topic()).payload(payload)).map_err(|(error, _)| error).unwrap();
        producer.flush(Duration::from_secs(10)).unwrap();
    }
}

pillarbox_testkit::sources!(Kafka);
